//! Defines the modes of serving prices and reports, which differ in their runtimes and threads.

use std::error::Error;
use std::str::FromStr;

use tokio::runtime::{self, Runtime};
use upshift::hyper::Server;
use upshift::{Level, Preemption};

use crate::engine::Engine;
use crate::policy;
use crate::service::{self, Queries};

/// Number of threads of each runtime.
const CPUS: usize = 2;

/// A mode of serving; the table in `main.rs` describes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Tokio,
    TokioIdle,
    VcpusIdle,
    Await,
}

impl Mode {
    pub(crate) const ALL: [Mode; 4] = [Mode::Tokio, Mode::TokioIdle, Mode::VcpusIdle, Mode::Await];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Tokio => "tokio",
            Mode::TokioIdle => "tokio-idle",
            Mode::VcpusIdle => "vcpus-idle",
            Mode::Await => "await",
        }
    }

    pub(crate) fn serve(self, address: &str) -> Result<(), Box<dyn Error>> {
        let second_runtime = match self {
            Mode::TokioIdle | Mode::VcpusIdle => Some(idle_runtime()?),
            _ => None,
        };
        let queries = match &second_runtime {
            Some(runtime) => Queries::On(runtime.handle().clone()),
            None => Queries::InHandler,
        };
        match self {
            Mode::Tokio | Mode::TokioIdle => serve_on_tokio(address, queries),
            Mode::VcpusIdle | Mode::Await => serve_on_vcpus(address, queries),
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Mode, String> {
        let mode = Mode::ALL.into_iter().find(|mode| mode.name() == name);
        mode.ok_or_else(|| format!("no mode is named {name}: see the table in src/main.rs"))
    }
}

/// Creates a runtime whose threads run while no ordinary thread wants their CPU.
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
