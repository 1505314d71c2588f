/** An Express API behind Weir: each API key has a rate, and ten exports of a key run at once. */
import express from "express";
import { createLimiter } from "weir-limiter/client";
import { concurrency, decisionsOf, rateLimit } from "weir-limiter/express";

const { WEIR_URL = "http://127.0.0.1:8787", WEIR_TOKEN = "", PORT = "3000" } = process.env;
const limiter = createLimiter({ url: WEIR_URL, token: WEIR_TOKEN });
const keyOf = (req: express.Request) => `customer:${req.get("x-api-key") ?? "anonymous"}`;

const app = express();
app.use(rateLimit({ limiter, policy: "api", key: keyOf }));
app.get("/", (req, res) => {
  res.json({ remaining: decisionsOf(req)["api"]?.remaining });
});
// The slot is free when the answer is sent, or the caller has gone.
app.get("/export", concurrency({ limiter, policy: "export", key: keyOf }), (_, res) => {
  res.json({ rows: 1_000 });
});

// At SIGTERM the limiter gives back what this process holds, then the process ends.
app.listen(Number(PORT), "127.0.0.1", () => console.log(`listening on port ${PORT}`));
