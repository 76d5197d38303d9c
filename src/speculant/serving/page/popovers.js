// Places a popover below the button that opens it, inside the window.

const GAP = 8; // pixels

export function placePopovers() {
  document.addEventListener("click", (event) => {
    const opener = event.target.closest?.("[popovertarget]");
    if (opener) place(document.getElementById(opener.getAttribute("popovertarget")), opener.getBoundingClientRect());
  });
}

function place(popover, { left, bottom, top }) {
  requestAnimationFrame(() => {
    if (!popover.matches(":popover-open")) return;
    const { width, height } = popover.getBoundingClientRect();
    const below = bottom + GAP;
    const fits = below + height < innerHeight || top < height + GAP;
    popover.style.left = `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`;
    popover.style.top = `${fits ? below : top - height - GAP}px`;
  });
}
