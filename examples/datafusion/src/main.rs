//! Runs DataFusion's queries beside an axum service's short requests, on the same CPUs.
//!
//! `GET /prices/{id}` runs at level 4 (level 0 is the most urgent, 63 the least) on a vCPU, which
//! is a worker of Upshift with its run queue. `GET /reports` runs a query of DataFusion, which
//! computes in tasks of `tokio::spawn`. These tasks have no level. Therefore they run on a second
//! tokio runtime whose threads are in `SCHED_IDLE`, so that the kernel prefers the threads of the
//! vCPUs. The handler waits at level 40.
//!
//! ```text
//! cargo run --release -- serve vcpus-idle 127.0.0.1:8080
//! curl localhost:8080/prices/7 localhost:8080/reports
//! ```
//!
//! Without arguments the program compares four modes of serving both, each in a process of its own,
//! and prints the latencies of prices while two clients request one report after the other:
//!
//! ```text
//! cargo run --release -- [ROUNDS [SECONDS]]
//! ```
//!
//! | mode | prices | reports |
//! |---|---|---|
//! | `tokio` | tokio, a thread for each CPU | on the same threads |
//! | `tokio-idle` | the same | on threads of a second tokio runtime in `SCHED_IDLE` |
//! | `vcpus-idle` | vCPUs at level 4 | on threads of a second tokio runtime in `SCHED_IDLE` |
//! | `await` | vCPUs at level 4 | awaited at level 40; DataFusion's tasks run on tokio's thread |

mod compare;
mod engine;
mod load;
mod mode;
mod policy;
mod service;

use std::error::Error;
use std::time::Duration;

use mode::Mode;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    if arguments.first().is_some_and(|first| first == "serve") {
        let mode = arguments.get(1).map_or("vcpus-idle", String::as_str);
        let address = arguments.get(2).map_or("127.0.0.1:0", String::as_str);
        return mode.parse::<Mode>()?.serve(address);
    }
    compare::run(number(0, 3)?, Duration::from_secs(number(1, 5)?))
}
