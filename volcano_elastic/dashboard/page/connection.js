/** Talks to the server. The token goes along as a header, which no other site can send for us. */

const KEY = "volcano-elastic-token";
const RETRY_MS = [500, 1000, 2000, 5000, 10000];
const SILENCE_MS = 45000;

/** What went wrong; `status` is HTTP's, 0 where there was no answer. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Takes the token out of the address, where it must not stay, and keeps it for this tab. */
export function takeToken() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (!found) return;
  setToken(decodeURIComponent(found[1]));
  history.replaceState(null, "", "#/");
}

export function setToken(token) {
  sessionStorage.setItem(KEY, token);
}

async function request(path, options = {}) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  let answer;
  try {
    answer = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  } catch (error) {
    throw new Refused(0, error.name === "AbortError" ? "interrupted" : "no answer from the dashboard");
  }
  if (!answer.ok) throw new Refused(answer.status, (await answer.text()).slice(0, 500));
  return answer;
}

/** Returns the JSON at `/api/name`; null and empty parameters are left out. */
export async function get(name, parameters = {}) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return (await request(`/api/${name}${query ? `?${query}` : ""}`)).json();
}

/** Calls `show` with each overview as it comes, and `tell` with what is wrong, or null; for ever. */
export async function follow(show, tell) {
  for (let failures = 0; ; ) {
    try {
      await stream((overview) => {
        failures = 0;
        tell(null);
        show(overview);
      });
      tell(new Refused(0, "the stream ended"));
    } catch (error) {
      tell(error);
      if (error.status === 401) return;
    }
    const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, wait * (0.75 + Math.random() / 2)));
  }
}

async function stream(show) {
  const stop = new AbortController();
  let silence = setTimeout(() => stop.abort(), SILENCE_MS);
  try {
    const answer = await request("/api/stream", { signal: stop.signal });
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(silence);
      silence = setTimeout(() => stop.abort(), SILENCE_MS);
      const frames = (rest + value).split("\n\n");
      rest = frames.pop();
      for (const frame of frames) {
        if (/^event: expired$/m.test(frame)) throw new Refused(401, "the token has ended");
        const data = /^data: (.*)$/m.exec(frame);
        if (data) show(JSON.parse(data[1]));
      }
    }
  } catch (error) {
    throw error instanceof Refused ? error : new Refused(0, "the connection was lost");
  } finally {
    clearTimeout(silence);
  }
}
