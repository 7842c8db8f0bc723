//! `upshift burn`: uses all the CPU time it gets, as a batch job beside a server does, and reports
//! how much work it did. Work is counted in loops of fixed length, so that other load on the CPUs
//! does not change the unit.

mod args;
mod run;

pub(crate) use args::BurnArgs;
pub(crate) use run::burn;
