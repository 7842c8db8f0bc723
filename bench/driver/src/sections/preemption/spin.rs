//! A run of spin requests: an open loop, with a seed of its own in each round.

use upshift_load::scenario::CLIENT_PRIORITY;
use upshift_load::{Awake, Plan, run};

use crate::measure::{Drive, Measured, observe};
use crate::peers::Program;
use crate::results::Run;
use crate::server::Server;

/// A load of spin requests; what depends on the server is filled in for each run.
#[derive(Clone)]
pub(crate) struct Spin {
    pub(crate) plan: Plan,
    /// Keep CPU 0 from halting.
    pub(crate) awake: bool,
    /// The server has both CPUs, and the client takes what it needs of CPU 1.
    pub(crate) two: bool,
    pub(crate) keep_disturbed: bool,
}

impl Drive for Spin {
    fn measure(&self, program: &Program, round: usize) -> Result<Measured, String> {
        let cpu = if self.two { None } else { Some(0) };
        let server = Server::start(program, &["127.0.0.1:0".into()], cpu)?;
        let awake = self.awake.then(|| Awake::on(0)).transpose();
        let awake = awake.map_err(|e| e.to_string())?;
        let mut plan = self.plan.clone().at(server.addresses[0]);
        plan.seed = 1 + round as u64;
        plan.pin = Some(1);
        plan.fifo = self.two.then_some(CLIENT_PRIORITY);
        plan.server_pid = Some(server.pid());
        observe(&server, !self.two, awake.as_ref(), || {
            run(&plan).map(upshift_load::Outcome::by_label)
        })
    }

    fn keep_disturbed(&self) -> bool {
        self.keep_disturbed
    }

    fn rows(&self, name: &str, measured: Measured) -> Vec<(String, Run)> {
        let mut labels: Vec<&str> = Vec::new();
        for class in &self.plan.classes {
            if !labels.contains(&class.label.as_str()) {
                labels.push(&class.label);
            }
        }
        let groups = labels.into_iter().zip(measured.groups);
        groups
            .map(|(label, run)| (class_row(name, label), run))
            .collect()
    }
}

/// The row of a class of a server.
pub(crate) fn class_row(server: &str, class: &str) -> String {
    format!("{server}: {class}")
}
