/** Numbers and times, as people read them. */

/** Returns an amount with at most two digits behind the point. */
export function amount(value) {
  return value === null || value === undefined ? "" : String(Math.round(value * 100) / 100);
}

/** Returns `3 min`, `2 h`, `5 d` of milliseconds. */
export function duration(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.floor(seconds / length)} ${unit}`;
  }
  return `${seconds} s`;
}

/** Returns how long ago an RFC 3339 time was. */
export function ago(time) {
  return time ? `${duration(Date.now() - Date.parse(time))} ago` : "";
}

/** Returns the clock's time, with the day where it isn't today. */
export function clock(time, seconds = true) {
  const at = new Date(time);
  const day = at.toDateString() === new Date().toDateString()
    ? "" : `${at.toLocaleDateString(undefined, { month: "short", day: "numeric" })} `;
  const precise = seconds ? { hour: "2-digit", minute: "2-digit", second: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  return day + at.toLocaleTimeString(undefined, { ...precise, hour12: false });
}

/** Returns the resource's short name: GPUs, CPUs. */
export function unit(resource) {
  return resource === "nvidia.com/gpu" ? "GPUs" : resource === "cpu" ? "CPUs" : resource;
}
