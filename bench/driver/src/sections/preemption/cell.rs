//! Measures a run of one server under one load.

use std::time::Duration;

use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{Awake, Outcome, run};

use super::cases::{Case, Load, Server as Kind};
use crate::measure::{Drive, Measured, observe};
use crate::peers::Program;
use crate::results::Run;
use crate::server::Server;

/// A case that is measured for `time`, with a separate seed for each round.
pub(super) struct Cell {
    pub(super) case: &'static Case,
    pub(super) time: Duration,
}

impl Drive for Cell {
    fn measure(&self, program: &Program, round: usize) -> Result<Measured, String> {
        let is_pinned = self.case.server != Kind::TwoVcpus;
        let server = Server::start(program, &["127.0.0.1:0".into()], is_pinned.then_some(0))?;
        let competitor = matches!(self.case.load, Load::Beside(_)).then(|| Awake::competing(0));
        let competitor = competitor.transpose().map_err(|e| e.to_string())?;
        let mut plan = self.case.plan(server.addresses[0], self.time);
        plan.seed = 1 + round as u64;
        plan.pin = Some(1);
        plan.fifo = (!is_pinned).then_some(CLIENT_PRIORITY);
        plan.server_pids = server.pids();
        observe(&server, is_pinned, competitor.as_ref(), || {
            run(&plan).map(Outcome::merge_by_label)
        })
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let groups = [SHORT, LONG].into_iter().zip(measured.groups);
        groups.map(|(class, run)| (row(name, class), run)).collect()
    }
}

/// Class of short requests, of pings and of pages.
pub(super) const SHORT: &str = "short";
/// Class of long requests.
pub(super) const LONG: &str = "long";

/// Returns the cell name for a class of requests to a server.
pub(super) fn row(server: &str, class: &str) -> String {
    format!("{server}: {class}")
}
