// A runner that knows the protocol page and nothing of Rota: pairs, connects, takes one job, answers ops.
// Usage: node --experimental-websocket minimal_runner.mjs HTTP_URL CODE
import { createHash, generateKeyPairSync, randomBytes, randomUUID, sign } from "node:crypto";

const [base, code] = process.argv.slice(2);
const host = new URL(base).hostname;
const { privateKey, publicKey } = generateKeyPairSync("ed25519");
const publicRaw = publicKey.export({ format: "jwk" }).x; // base64url of the 32 bytes

const paired = await fetch(`${base}/v1/pair`, {
  method: "POST",
  headers: { "content-type": "application/json" },
  body: JSON.stringify({ code, publicKey: publicRaw, name: "node", agentVersion: "0.1", os: "linux", arch: "amd64" }),
});
if (!paired.ok) {
  console.error(`not paired: ${paired.status}`);
  process.exit(1);
}
const { deviceId } = await paired.json();

const files = new Map();
const answers = new Map();
let job = null;

const socket = new WebSocket(`${base.replace(/^http/, "ws")}/v1/connect`, "reelbolt.runner.v1");
const say = (type, payload, ids = {}) => socket.send(JSON.stringify({ v: 1, type, id: randomUUID(), ...ids, payload }));
const proof = () => ({ leaseEpoch: job.leaseEpoch, jobToken: job.jobToken });

socket.onopen = () => {
  const ts = new Date().toISOString();
  const nonce = randomBytes(16).toString("base64url");
  const text = `reelbolt-runner-hello-v1|${deviceId}|${ts}|${nonce}|${host}`;
  const sig = sign(null, Buffer.from(text), privateKey).toString("base64url");
  say("hello", {
    protocolVersion: "1.0",
    auth: { kind: "device", deviceId, ts, nonce, sig },
    capabilities: {
      protocolVersion: "1.0", agentVersion: "0.1", os: "linux", arch: "amd64", slots: 1, container: "none",
      runtimeImageDigest: null, ffmpegVersion: "7.0", fontsetVersion: "1", jobTypes: ["video.compile"],
      maxOutputBytes: 8 * 2 ** 30,
    },
  });
};

const ops = {
  async stage({ url, path, maxBytes }) {
    const got = Buffer.from(await (await fetch(url)).arrayBuffer());
    if (got.length > maxBytes) throw { code: "file_too_large", message: "over maxBytes", retryable: false };
    files.set(path, got);
    return { bytes: got.length, sha256: createHash("sha256").update(got).digest("hex") };
  },
  async stat({ path }) {
    return { exists: files.has(path), bytes: files.get(path)?.length ?? 0 };
  },
  async read({ path }) {
    const got = files.get(path);
    if (!got) throw { code: "invalid_path", message: "no such file", retryable: false };
    return { content: got.toString("base64"), encoding: "base64", bytes: got.length };
  },
  async close() {
    return {};
  },
};

async function answer({ opId, op, args }, sessionId) {
  if (!answers.has(opId)) {
    try {
      if (!Object.hasOwn(ops, op)) throw { code: "unsupported_op", message: `no op ${op}`, retryable: false };
      answers.set(opId, { ok: true, result: await ops[op](args) });
    } catch (error) {
      const told = error.code ? error : { code: "internal_error", message: String(error), retryable: false };
      answers.set(opId, { ok: false, error: told });
    }
  }
  say("op.response", { ...proof(), opId, ...answers.get(opId) }, { jobId: job.jobId, sessionId });
  if (op === "close") {
    say("complete", { ...proof(), outcome: "succeeded" }, { jobId: job.jobId });
    job = null;
    say("bye", { reason: "done" });
    socket.close(1000);
  }
}

const beat = () =>
  say("heartbeat", {
    freeSlots: job ? 0 : 1,
    running: job ? [{ jobId: job.jobId, leaseEpoch: job.leaseEpoch }] : [],
  });

socket.onmessage = async ({ data }) => {
  const { type, jobId, sessionId, payload } = JSON.parse(data);
  if (type === "welcome") {
    const beating = setInterval(beat, payload.heartbeatSec * 1000);
    socket.addEventListener("close", () => clearInterval(beating));
    say("ready", { freeSlots: 1 });
  } else if (type === "assign") {
    job = { jobId, leaseEpoch: payload.leaseEpoch, jobToken: payload.jobToken };
    say("accept", proof(), { jobId });
  } else if (type === "op.request" && job?.jobId === jobId) {
    await answer(payload, sessionId);
  } else if (type === "cancel" && job?.jobId === jobId) {
    say("complete", { ...proof(), outcome: "cancelled" }, { jobId });
    job = null;
  }
};
socket.onclose = ({ code: closed, reason }) => {
  console.log(`closed ${closed} ${reason}`);
  process.exitCode = closed === 1000 ? 0 : 1;
};
