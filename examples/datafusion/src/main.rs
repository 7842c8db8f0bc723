//! DataFusion's queries beside an axum service's short requests, on the same CPUs.
//!
//! `GET /prices/{id}` runs at level 4. `GET /reports` runs a query of DataFusion at level 40, in
//! [`upshift::task::tokio_scope`]: the tasks that DataFusion spawns with `tokio::spawn` are polled
//! at level 40, too, and are suspended when a request for a price arrives.
//!
//! ```text
//! cargo run --release -- serve scope 127.0.0.1:8080
//! curl localhost:8080/prices/7 localhost:8080/reports
//! ```
//!
//! Without arguments the program compares five ways to serve both, each in a process of its own,
//! and prints the latencies of prices while two clients ask for one report after the other:
//!
//! ```text
//! cargo run --release -- [ROUNDS [SECONDS]]
//! ```
//!
//! | way | prices | reports |
//! |---|---|---|
//! | `tokio` | tokio, a thread for each CPU | on the same threads |
//! | `tokio-idle` | the same | on threads of a second tokio runtime in `SCHED_IDLE` |
//! | `vcpus-idle` | vCPUs at level 4 | on threads of a second tokio runtime in `SCHED_IDLE` |
//! | `await` | vCPUs at level 4 | awaited at level 40; DataFusion's tasks run on tokio's thread |
//! | `scope` | vCPUs at level 4 | in a scope at level 40 on the vCPUs |

mod compare;
mod engine;
mod load;
mod policy;
mod service;
mod way;

use std::error::Error;
use std::time::Duration;

use way::Way;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| match arguments.get(index) {
        Some(text) => text.parse(),
        None => Ok(default),
    };
    if arguments.first().is_some_and(|first| first == "serve") {
        let way = arguments.get(1).map_or("scope", String::as_str);
        let address = arguments.get(2).map_or("127.0.0.1:0", String::as_str);
        return way.parse::<Way>()?.serve(address);
    }
    compare::run(number(0, 3)?, Duration::from_secs(number(1, 5)?))
}
