-- One line for the driver: replies, microseconds, errors, and the median, 99 % and 99.9 % of the latency in microseconds.
done = function(summary, latency)
   local e = summary.errors
   io.write(string.format("report %d %d %d %d %d %d\n", summary.requests, summary.duration,
      e.connect + e.read + e.write + e.status + e.timeout,
      latency:percentile(50), latency:percentile(99), latency:percentile(99.9)))
end
