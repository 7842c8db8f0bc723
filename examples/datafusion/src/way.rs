//! The ways to serve prices and reports.

use std::error::Error;
use std::str::FromStr;

use tokio::runtime::{self, Runtime};
use upshift::hyper::Server;
use upshift::{Level, Preemption};

use crate::engine::Engine;
use crate::policy;
use crate::service::{self, Queries};

/// CPUs that each way uses.
const CPUS: usize = 2;

/// See the table of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tokio,
    TokioIdle,
    VcpusIdle,
    Await,
}

impl Way {
    pub(crate) const ALL: [Way; 4] = [Way::Tokio, Way::TokioIdle, Way::VcpusIdle, Way::Await];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Tokio => "tokio",
            Way::TokioIdle => "tokio-idle",
            Way::VcpusIdle => "vcpus-idle",
            Way::Await => "await",
        }
    }

    /// Serves until the process ends.
    pub(crate) fn serve(self, address: &str) -> Result<(), Box<dyn Error>> {
        let idle = match self {
            Way::TokioIdle | Way::VcpusIdle => Some(idle_runtime()?),
            _ => None,
        };
        let queries = match &idle {
            Some(runtime) => Queries::On(runtime.handle().clone()),
            None => Queries::InHandler,
        };
        match self {
            Way::Tokio | Way::TokioIdle => serve_on_tokio(address, queries),
            Way::VcpusIdle | Way::Await => serve_on_vcpus(address, queries),
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Way, String> {
        let way = Way::ALL.into_iter().find(|way| way.name() == name);
        way.ok_or_else(|| format!("no way is named {name}: see the table in src/main.rs"))
    }
}

/// A runtime whose threads run while no ordinary thread wants their CPU.
fn idle_runtime() -> std::io::Result<Runtime> {
    runtime::Builder::new_multi_thread()
        .worker_threads(CPUS)
        .on_thread_start(policy::run_when_idle)
        .build()
}

fn serve_on_tokio(address: &str, queries: Queries) -> Result<(), Box<dyn Error>> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(CPUS)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(address).await?;
        println!("listening on {}", listener.local_addr()?);
        let router = service::router(Engine::new()?, queries);
        Ok(axum::serve(listener, router).await?)
    })
}

fn serve_on_vcpus(address: &str, queries: Queries) -> Result<(), Box<dyn Error>> {
    let runtime = upshift::Runtime::builder()
        .vcpus(CPUS)
        .tokio(true)
        .preemption(Preemption::Preferred)
        .build()?;
    runtime.block_on(async {
        let listener = upshift::net::TcpListener::bind(address)?;
        println!("listening on {}", listener.local_addr()?);
        let router = service::router(Engine::new()?, queries);
        let server = Server::new(listener)
            .receive_level(Level::at::<2>())
            .levels(|request| service::level(request.uri().path()));
        Ok(server.run(router).await?)
    })
}
