// What to begin with: stories for the bundled model, which knows nothing else, and tasks for others.

const STORIES = {
  "Lily outside": "Once upon a time there was a little girl named Lily. She loved to play outside",
  "A rabbit": "Once upon a time, in a big forest, there lived a small rabbit",
  "A red car": "Tom had a red car. He liked to play with",
};
const TASKS = {
  "A function": "Write a Python function that merges two sorted lists, with a docstring and three tests.",
  "A table": "List the planets of the solar system in a Markdown table: name, diameter in km, number of moons.",
  "An explanation": "Explain in three short paragraphs why the sky is blue.",
};
const STARTERS = ["Tell me a story about a brave little dog.", "Lily found a shiny key in the garden.", "Tom and his red car went to the park."];

// Returns prompts by their short names, for the model of that name.
export const promptsFor = (model) => (model === "bundled" ? STORIES : TASKS);

export const startersFor = (model) => (model === "bundled" ? STARTERS : Object.values(TASKS));
