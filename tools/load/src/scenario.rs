//! Defines the loads that both the demo (once, in seconds) and the benchmarks (in interleaved
//! rounds) measure.
//!
//! The levels, rates and CPU times of these loads are defined only here. The caller decides the
//! duration and the comparisons. The plans have [`UNSET_TARGET`] as their target until the server's
//! address is known.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::{Pace, Plan};

/// The target of a plan whose server has not been started.
pub const UNSET_TARGET: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Load of eight levels at overload: the level of each address, from the most urgent.
pub const LEVELS: [u8; 8] = [0, 8, 16, 24, 32, 40, 48, 56];
/// The same addresses, all at one level.
pub const ONE_LEVEL: [u8; 8] = [32; 8];
/// Rows of the matrices in the load of eight levels: large enough that the server is at its limit,
/// not the client.
pub const OVERLOAD_SIZE: usize = 20;
/// Offered load of the eight levels together, as a multiple of the server's capacity.
pub const OVERLOAD: f64 = 1.3;

/// Requests per second in the load of short and long requests, both together, if short requests
/// take [`SHORT_SERVICE`].
pub const MIXED_RATE: f64 = 20_000.0;
/// CPU time of short requests; long requests take a thousand times as long.
pub const SHORT_SERVICE: Duration = Duration::from_nanos(500);
/// Share of long requests.
pub const LONG_SHARE: f64 = 0.005;

/// Level of the endless work beside [`pings`] or an [`urgent`] server.
pub const BATCH_LEVEL: u8 = 40;
/// Level of the [`urgent`] server.
pub const URGENT_LEVEL: u8 = 2;

/// SCHED_FIFO priority of the client if other work computes on its CPU.
pub const CLIENT_PRIORITY: u8 = 45;

/// Returns the load of pings: each millisecond a request of level 0 without work, on one
/// connection.
pub fn pings(duration: Duration) -> Plan {
    let mut plan = Plan::spin(UNSET_TARGET, 1000.0, Duration::ZERO, duration);
    plan.classes[0].label = "pings".into();
    plan.classes[0].level = 0;
    plan.groups[0].connections = 1;
    plan.pace = Pace::OpenRate { per_second: 1000.0 };
    plan
}

/// Returns the load of an urgent server while a batch process computes on every CPU: 1,000 requests
/// of 100 µs per second.
pub fn urgent(duration: Duration) -> Plan {
    let mut plan = Plan::spin(UNSET_TARGET, 1000.0, Duration::from_micros(100), duration);
    plan.classes[0].level = URGENT_LEVEL;
    plan.groups[0].connections = 4;
    plan.warmup = Duration::from_millis(300);
    plan
}

/// The progress of the batch process, which `upshift burn --json` prints.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BurnReport {
    /// Seconds from start to end.
    pub seconds: f64,
    /// Completed work, in seconds of CPU time.
    pub work: f64,
    /// Number of CPUs to burn.
    pub cpus: usize,
}
