// Conversations in the browser's own database; where it may not be used, they last as long as the page.

const [NAME, TABLE, KEPT] = ["speculant", "conversations", 200];

export class Store {
  constructor() {
    this.memory = new Map();
    this.opening = open().catch(() => null);
  }

  // Returns all conversations, the latest first, and forgets those beyond the last 200.
  async all() {
    const found = await this.run("readonly", (table) => table.getAll()) ?? [...this.memory.values()];
    found.sort((a, b) => b.updated - a.updated);
    for (const each of found.splice(KEPT)) await this.remove(each.id);
    return found;
  }

  async save(conversation) {
    this.memory.set(conversation.id, structuredClone(conversation));
    await this.run("readwrite", (table) => table.put(conversation));
  }

  async remove(id) {
    this.memory.delete(id);
    await this.run("readwrite", (table) => table.delete(id));
  }

  async clear() {
    this.memory.clear();
    await this.run("readwrite", (table) => table.clear());
  }

  async run(mode, act) {
    const database = await this.opening;
    return database && settled(act(database.transaction(TABLE, mode).objectStore(TABLE))).catch(() => null);
  }
}

function open() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "id" });
  return settled(request);
}

const settled = (request) =>
  new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
