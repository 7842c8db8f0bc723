//! `upshift load`: puts load on a server, and measures its throughput and latency.

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
