// Reads include/zklock_ffi.h with koffi in Node, and holds a lock with promises: hold.js HEADER LIBRARY SERVERS PATH
//
// Node cannot watch the descriptor of an operation, because net.Socket accepts only sockets and pipes. All operations therefore
// have one completion queue, and one asynchronous call of poll() waits for its descriptor, while an operation is pending. This call
// is the only one that occupies a thread of Node's pool. Blocking calls of the library would occupy one thread each. With four
// waiters, no thread would then be left for the release of the holder.

const fs = require("fs");
const koffi = require("koffi");

const [header, library, servers, path] = process.argv.slice(2);
const zkl = load(header, library);
const POLLIN = 1;

/** Loads all functions of the header. A parameter whose name ends in `_out` is an array of length one. */
function load(header, library) {
  const declarations = fs.readFileSync(header, "utf8").replace(/\/\*[^]*?\*\//g, "");
  for (const [, name] of declarations.matchAll(/^typedef struct \w+ (zkl_\w+);$/gm)) koffi.opaque(name);
  for (const [, name] of declarations.matchAll(/^typedef .*\(\*(zkl_\w+)\)\(.*\);$/gm)) koffi.alias(name, "void *");
  koffi.alias("zkl_status", "int32_t");
  for (const [, fields, name] of declarations.matchAll(/^typedef struct \w+ \{([^]*?)\n\} (zkl_\w+);$/gm)) {
    const members = Array.from(fields.matchAll(/^\s*(.*?)(\w+);$/gm), ([, type, member]) => [member, type.trim()]);
    koffi.struct(name, Object.fromEntries(members));
  }
  const loaded = koffi.load(library);
  const functions = {};
  for (const [declaration, name] of declarations.matchAll(/^(?!typedef).*?(zkl_\w+)\(.*\);$/gm)) {
    const written = declaration.replace(/(?<=[(,] ?)(const )?([^,()]*\*)(\w+_out)(?=[,)])/g, "_Out_ $1$2$3");
    functions[name] = loaded.func(written.replace("*const *", "**").slice(0, -1));
  }
  const numbers = declarations.matchAll(/^    (ZKL_\w+) = (-?\d+),?$/gm);
  return Object.assign(functions, Object.fromEntries(Array.from(numbers, ([, name, number]) => [name, Number(number)])));
}

function check(status, what) {
  if (status !== zkl.ZKL_OK) throw new Error(`${what}: status ${status}, ${zkl.zkl_last_error_message()}`);
}

/** Calls a function whose last parameter receives a value, and returns the value. */
function output(name, ...values) {
  const place = [null];
  check(zkl[name](...values, place), name);
  return place[0];
}

/** The operations that have not ended, by their keys. */
class Operations {
  #queue = output("zkl_completion_queue_new");
  #poll;
  #pending = new Map();
  #lastKey = 0;

  constructor() {
    koffi.struct("pollfd", { fd: "int", events: "short", revents: "short" });
    this.#poll = koffi.load("libc.so.6").func("int poll(_Inout_ pollfd *files, unsigned long count, int timeout)");
  }

  /** Starts an operation, and returns a promise of the operation. The caller frees it. */
  run(name, ...values) {
    const op = output(name, ...values);
    const key = ++this.#lastKey;
    check(zkl.zkl_op_notify(op, this.#queue, key), "zkl_op_notify");
    return new Promise((resolve, reject) => {
      this.#pending.set(key, () => {
        const status = zkl.zkl_op_result(op);
        if (status === zkl.ZKL_OK) return resolve(op);
        reject(new Error(`${name}: status ${status}, ${zkl.zkl_op_message(op)}`));
        zkl.zkl_op_free(op);
      });
      if (this.#pending.size === 1) this.#wait();
    });
  }

  #wait() {
    const files = [{ fd: zkl.zkl_completion_queue_fd(this.#queue), events: POLLIN, revents: 0 }];
    this.#poll.async(files, 1, -1, () => {
      const [keys, taken] = [new BigUint64Array(64), [0]];
      check(zkl.zkl_completion_queue_take(this.#queue, keys, keys.length, taken), "zkl_completion_queue_take");
      for (const key of keys.slice(0, Number(taken[0]))) {
        const end = this.#pending.get(Number(key));
        this.#pending.delete(Number(key));
        end?.();
      }
      if (this.#pending.size > 0) this.#wait();
    });
  }
}

/** Takes a value from an operation, and frees the operation. */
function take(op, name) {
  const value = output(name, op);
  zkl.zkl_op_free(op);
  return value;
}

async function main() {
  if (zkl.zkl_version_number() !== zkl.ZKL_VERSION_NUMBER) throw new Error("the version");
  const operations = new Operations();
  const client = take(await operations.run("zkl_client_start", servers, null), "zkl_op_client");
  const lock = output("zkl_mutex_new", client, path);
  let holders = 0;
  const turn = async () => {
    const hold = take(await operations.run("zkl_acquire_start", lock, zkl.ZKL_OWNER_NEW, 20_000), "zkl_op_hold");
    if (++holders !== 1 || zkl.zkl_hold_is_held(hold) !== 1) throw new Error("the lock is not held alone");
    // The wait for a loss ends with NOT_OWNER when the hold is released.
    const lost = operations.run("zkl_hold_wait_lost_start", hold).then(() => "lost", (error) => error.message);
    const listed = await operations.run("zkl_participants_start", lock);
    const participant = koffi.decode(output("zkl_op_participant", listed, 0), "zkl_participant");
    if (!participant.node_path.startsWith(path)) throw new Error("another participant");
    zkl.zkl_op_free(listed);
    holders--;
    zkl.zkl_op_free(await operations.run("zkl_hold_release_start", hold));
    const end = await lost;
    if (!end.includes(`status ${zkl.ZKL_E_NOT_OWNER}`)) throw new Error(`the wait for a loss: ${end}`);
  };
  // More waiters than Node's pool has threads.
  await Promise.all(Array.from({ length: 8 }, turn));
  zkl.zkl_lock_free(lock);
  zkl.zkl_op_free(await operations.run("zkl_client_close_start", client));
  zkl.zkl_client_free(client);
  console.log("held");
}

main();
