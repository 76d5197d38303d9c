// Plays a race: both texts side by side by the clock at which they were decoded, as slowly as one can read.

import { byId, element } from "../dom.js";
import { seconds } from "../wording.js";
import { follow } from "./lane.js";

const SPEEDS = [0.1, 0.25, 0.5, 1];
const COMFORTABLE = 7000; // milliseconds that a race should take to watch
const STEPS = 1000; // of the slider

export class Playback {
  constructor() {
    this.entries = []; // of { lane, run }
    this.now = this.duration = 0;
    this.playing = false;
    for (const speed of SPEEDS) {
      const input = element("input", { type: "radio", name: "speed", value: speed });
      byId("speeds").append(element("label", {}, input, element("span", {}, `${speed}×`)));
    }
    byId("play").addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    byId("time").addEventListener("input", () => {
      this.pause();
      this.seek((this.duration * Number(byId("time").value)) / STEPS);
    });
  }

  // Takes the lanes and runs of a race, and shows their end.
  load(entries) {
    this.pause();
    this.entries = entries;
    this.duration = Math.max(...entries.map(({ run }) => run.rounds.at(-1).total.milliseconds));
    const speed = SPEEDS.findLast((each) => this.duration / each >= COMFORTABLE) || SPEEDS[0];
    document.querySelector(`input[name=speed][value="${speed}"]`).checked = true;
    this.seek(this.duration);
  }

  get speed() {
    return Number(document.querySelector("input[name=speed]:checked").value);
  }

  play() {
    if (this.now >= this.duration) this.seek(0);
    this.playing = true;
    byId("play").textContent = "Pause";
    let before = performance.now();
    const frame = (time) => {
      if (!this.playing) return;
      this.seek(this.now + Math.max(0, time - before) * this.speed);
      before = time;
      follow(this.entries.map((each) => each.lane));
      if (this.now < this.duration) requestAnimationFrame(frame);
      else this.pause();
    };
    requestAnimationFrame(frame);
  }

  pause() {
    this.playing = false;
    byId("play").textContent = "Play";
  }

  seek(milliseconds) {
    this.now = Math.min(this.duration, milliseconds);
    for (const { lane, run } of this.entries) {
      lane.showUntil(run, this.now);
      lane.progress(this.now / run.rounds.at(-1).total.milliseconds);
    }
    byId("time").value = this.duration ? (STEPS * this.now) / this.duration : 0;
    byId("clock").textContent = seconds(this.now);
    byId("time").setAttribute("aria-valuetext", `${seconds(this.now)} of ${seconds(this.duration)}`);
  }
}
