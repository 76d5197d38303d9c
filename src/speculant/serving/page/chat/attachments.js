// Files and images that go with the next message.

import { byId, button, element } from "../dom.js";

const MOST_TEXT = 400_000; // bytes of a file
const MOST_SIDE = 1568; // pixels, beyond which an image is made smaller
const QUALITY = 0.9;

export class Attachments {
  constructor(onError) {
    Object.assign(this, { onError, files: [], images: [], takesImages: false });
    byId("attach-file").addEventListener("click", () => byId("files").click());
    byId("attach-image").addEventListener("click", () => byId("images").click());
    for (const id of ["files", "images"]) {
      byId(id).addEventListener("change", async () => {
        await this.add(byId(id).files);
        byId(id).value = "";
      });
    }
    byId("composer").addEventListener("dragover", (event) => event.preventDefault());
    byId("composer").addEventListener("drop", (event) => {
      event.preventDefault();
      this.add(event.dataTransfer.files);
    });
    byId("message").addEventListener("paste", (event) => {
      if (!event.clipboardData.files.length) return;
      event.preventDefault();
      this.add(event.clipboardData.files);
    });
  }

  allowImages(allowed) {
    this.takesImages = allowed;
    byId("attach-image").hidden = !allowed;
  }

  async add(files) {
    this.onError("");
    for (const file of [...files]) {
      try {
        if (file.type.startsWith("image/")) this.images.push(await this.readImage(file));
        else this.files.push(await readText(file));
      } catch (error) {
        this.onError(error.message);
      }
    }
    this.show();
    byId("message").focus();
  }

  async readImage(file) {
    if (!this.takesImages) throw new Error(`“${file.name}” is an image, and this model reads text only.`);
    const bitmap = await createImageBitmap(file).catch(() => {
      throw new Error(`“${file.name}” is no image that this browser can read.`);
    });
    const scale = Math.min(1, MOST_SIDE / Math.max(bitmap.width, bitmap.height));
    const canvas = element("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
    canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
    const type = file.type === "image/jpeg" ? "image/jpeg" : "image/png";
    return { name: file.name, url: canvas.toDataURL(type, QUALITY) };
  }

  // Returns what is attached, and begins anew.
  take() {
    const taken = { files: this.files, images: this.images };
    Object.assign(this, { files: [], images: [] });
    this.show();
    return taken;
  }

  show() {
    const chip = (list, each) => {
      const remove = () => {
        list.splice(list.indexOf(each), 1);
        this.show();
      };
      const picture = each.url ? [element("img", { src: each.url, alt: "" })] : [];
      return element("li", {}, ...picture, each.name, button("×", remove, { "aria-label": `Remove ${each.name}` }));
    };
    byId("attached").replaceChildren(...[this.files, this.images].flatMap((list) => list.map((each) => chip(list, each))));
  }
}

async function readText(file) {
  if (file.size > MOST_TEXT) throw new Error(`“${file.name}” has ${Math.round(file.size / 1000)} kB, and at most ${MOST_TEXT / 1000} are taken. Attach a part of it.`);
  const text = await file.text();
  if (text.includes("\0") || text.includes("\ufffd")) throw new Error(`“${file.name}” is not text. Attach a text file, such as code, Markdown or CSV.`);
  return { name: file.name, text };
}
