//! `upshift load`: load for a server, its throughput and latency.

mod args;
mod measuring;
mod run;
mod show;
mod spin_args;

pub(crate) use args::LoadArgs;
#[cfg(test)]
pub(crate) use args::LoadWork;
pub(crate) use run::load;
pub(crate) use show::latencies;
