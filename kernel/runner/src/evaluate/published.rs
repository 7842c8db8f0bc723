//! Figures that were published for the papers' system: the raw data in the repository of their
//! code, from an FPGA with 4 harts at 100 MHz (15 × 15 matrices every 100 ms, measured for 5 s),
//! and the papers' claims.

/// Requests answered per second, by connections: KCUC, KCUT, KTUC, KTUT. `None` if the model
/// failed.
pub(crate) const THROUGHPUT: [(u32, [Option<f64>; 4]); 8] = [
    (1, [Some(19.5), Some(22.2), Some(43.3), Some(40.1)]),
    (2, [Some(42.1), Some(39.8), Some(79.9), Some(67.3)]),
    (4, [Some(83.1), Some(69.6), Some(133.6), Some(107.5)]),
    (8, [Some(153.1), Some(126.6), Some(238.3), Some(153.8)]),
    (16, [Some(244.9), Some(147.5), Some(358.7), Some(162.6)]),
    (32, [Some(372.3), Some(175.0), Some(482.1), Some(149.2)]),
    (64, [Some(486.7), Some(123.6), Some(517.4), Some(94.2)]),
    (96, [Some(491.0), None, Some(477.2), None]),
];

/// Requests answered per second at each of 8 levels, with 64 connections every 50 ms, by harts.
pub(crate) const PRIORITIES: [(u32, [f64; 8]); 4] = [
    (1, [85.6, 73.9, 72.1, 41.9, 8.2, 8.1, 8.3, 8.0]),
    (2, [127.3, 87.8, 76.1, 66.4, 56.1, 41.4, 14.3, 8.4]),
    (3, [139.8, 103.8, 78.3, 68.0, 59.5, 54.6, 45.3, 32.8]),
    (4, [112.9, 94.6, 78.2, 68.9, 61.3, 55.3, 50.9, 44.7]),
];

/// Mean latencies of the most and the least urgent of these levels, in milliseconds, by harts.
pub(crate) const LATENCY: [(u32, u32, u32); 4] = [
    (1, 444, 5988),
    (2, 280, 5494),
    (3, 251, 1301),
    (4, 331, 893),
];

/// Maximum numbers of connections in 26 MiB of frames: KCUC, KTUT.
pub(crate) const MAX_CONNECTIONS: (u32, u32) = (385, 186);
