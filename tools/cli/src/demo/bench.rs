//! What the experiments share: where server and client run, how one measurement is made.
//!
//! A measurement is one `upshift load` against running servers, both children of the demo, so
//! the printed commands repeat it exactly.

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::time::Duration;

use anyhow::Result;
use upshift_load::{Awake, Report, SpinPlan, machine};

use super::children::{Children, Interrupted, Program, Server, Stop};
use super::progress::Progress;
use crate::choice::Model;
use crate::load;

/// Planned time of a measurement beyond its own: start, connect, last replies.
const OVERHEAD: Duration = Duration::from_millis(70);
/// How much longer than planned a measurement may take before it is given up.
const PATIENCE: Duration = Duration::from_secs(20);

/// CPUs of server and client; empty and `None` where nothing is pinned.
#[derive(Debug, Clone)]
pub(crate) struct Placement {
    pub(crate) server: Vec<usize>,
    pub(crate) client: Option<usize>,
    /// All CPUs of this process.
    pub(crate) all: Vec<usize>,
}

impl Placement {
    /// Server on the first CPU and client on the second, if there are two.
    pub(crate) fn choose() -> Placement {
        let all = machine::allowed_cpus();
        match all[..] {
            [first, second, ..] => Placement {
                server: vec![first],
                client: Some(second),
                all,
            },
            _ => Placement {
                server: Vec::new(),
                client: None,
                all,
            },
        }
    }

    /// In words.
    pub(crate) fn line(&self) -> String {
        match (self.server.first(), self.client) {
            (Some(server), Some(client)) => {
                format!("server on CPU {server}, client on CPU {client}, over 127.0.0.1")
            }
            _ => "server and client share the only CPU, over 127.0.0.1".into(),
        }
    }

    /// `--pin` of the client for a printed command, with a leading space, or nothing.
    pub(crate) fn client_flag(&self) -> String {
        self.client
            .map(|cpu| format!(" --pin {cpu}"))
            .unwrap_or_default()
    }
}

/// `--vcpus N --pin A,B` for these CPUs; nothing if there are none.
pub(crate) fn server_flags(cpus: &[usize]) -> Vec<String> {
    if cpus.is_empty() {
        return Vec::new();
    }
    let list = cpus
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    vec![
        "--vcpus".into(),
        cpus.len().to_string(),
        "--pin".into(),
        list,
    ]
}

/// `--preempt on|off --quantum TIME`.
pub(crate) fn spin_flags(preempt: &str, quantum: &str) -> [String; 4] {
    ["--preempt", preempt, "--quantum", quantum].map(str::to_owned)
}

/// When requests leave.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    Closed,
    /// Period of each connection.
    Period(Duration),
    /// Requests per second to each address.
    Rate(f64),
}

/// One measurement.
#[derive(Debug)]
pub(crate) struct Measurement<'a> {
    /// For the progress bar.
    pub(crate) label: &'a str,
    pub(crate) targets: Vec<(SocketAddr, String)>,
    /// To each target.
    pub(crate) connections: usize,
    pub(crate) size: usize,
    pub(crate) pace: Pace,
    pub(crate) warmup: Duration,
    pub(crate) duration: Duration,
    pub(crate) server: u32,
}

impl Measurement<'_> {
    fn args(&self, client: Option<usize>) -> Vec<String> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut args = vec!["load".to_owned(), "matrix".into(), "--json".into()];
        let mut flag = |name: &str, value: String| args.extend([name.to_owned(), value]);
        for (address, label) in &self.targets {
            flag("--connect", format!("{address}@{label}"));
        }
        flag("--connections", self.connections.to_string());
        flag("--size", self.size.to_string());
        match self.pace {
            Pace::Closed => {}
            Pace::Period(period) => flag("--period", millis(period)),
            Pace::Rate(rate) => flag("--rate", format!("{rate:.0}")),
        }
        flag("--warmup", millis(self.warmup));
        flag("--duration", millis(self.duration));
        flag("--server-pid", self.server.to_string());
        if let Some(cpu) = client {
            flag("--pin", cpu.to_string());
        }
        args
    }
}

/// Planned time of one measurement.
pub(crate) fn planned(warmup: Duration, duration: Duration) -> Duration {
    warmup + duration + OVERHEAD
}

/// The demo while it runs.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) quick: bool,
    pub(crate) placement: Placement,
    pub(crate) children: Children,
    pub(crate) stop: Stop,
    pub(crate) progress: Progress,
}

impl Bench {
    /// Starts a matrix server on free ports, one per entry of `levels`.
    pub(crate) fn matrix_server(
        &self,
        model: Model,
        levels: &[u8],
        cpus: &[usize],
    ) -> Result<Server> {
        let mut args = vec![
            "matrix-server".to_owned(),
            "--model".into(),
            model.word().into(),
        ];
        for level in levels {
            args.extend(["--listen".to_owned(), format!("127.0.0.1:0@{level}")]);
        }
        args.extend(server_flags(cpus));
        self.children.server(&args, levels.len())
    }

    /// Starts a spin server on a free port, on the server's CPU.
    pub(crate) fn spin_server(&self, level: u8, preempt: &str, quantum: &str) -> Result<Server> {
        self.start_spin_server(level, preempt, quantum, &[])
    }

    /// The same, with a live view.
    pub(crate) fn observed_spin_server(
        &self,
        level: u8,
        preempt: &str,
        quantum: &str,
    ) -> Result<Server> {
        self.start_spin_server(level, preempt, quantum, &["--observe"])
    }

    fn start_spin_server(
        &self,
        level: u8,
        preempt: &str,
        quantum: &str,
        more: &[&str],
    ) -> Result<Server> {
        let mut args = vec!["spin-server".to_owned()];
        args.extend(["--listen".to_owned(), format!("127.0.0.1:0@{level}")]);
        args.extend(spin_flags(preempt, quantum));
        args.extend(server_flags(&self.placement.server));
        args.extend(more.iter().map(ToString::to_string));
        self.children.server(&args, 1)
    }

    /// Starts a spin server on a free port, on the server's CPU, that joins the daemon or not.
    pub(crate) fn board_server(&self, level: u8, board: &str) -> Result<Server> {
        let mut args = vec!["spin-server".to_owned()];
        args.extend(["--listen".to_owned(), format!("127.0.0.1:0@{level}")]);
        args.extend(["--board".to_owned(), board.to_owned()]);
        args.extend(server_flags(&self.placement.server));
        self.children.server(&args, 1)
    }

    /// Starts a batch process that burns every CPU.
    pub(crate) fn batch(&self, nice: bool, board: &str) -> Result<Program> {
        let nice = if nice { "19" } else { "0" };
        let args = ["burn", "--json", "--nice", nice, "--board", board].map(str::to_owned);
        Ok(self.children.program(&args, 1)?.0)
    }

    /// Starts a daemon that children of the demo join from now on.
    pub(crate) fn daemon(&mut self) -> Result<Program> {
        // Of its own: the daemon refuses a socket that others could replace.
        let folder = std::env::temp_dir().join(format!("upshift-demo-{}", std::process::id()));
        let mut private = std::fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&folder)?;
        let socket = folder.join("daemon.sock");
        let args = ["daemon", "--socket"].map(str::to_owned);
        let socket_arg = socket.display().to_string();
        let args: Vec<String> = args.into_iter().chain([socket_arg]).collect();
        let (daemon, _) = self.children.program(&args, 1)?;
        self.children.daemon = Some(socket);
        Ok(daemon)
    }

    /// Runs `upshift load spin` as a plan says against a server.
    pub(crate) fn spin_load(
        &mut self,
        label: &str,
        server: &Server,
        plan: &SpinPlan,
        time: Duration,
    ) -> Result<Report> {
        self.progress.step(label, time);
        let mut args = vec!["load".to_owned(), "spin".into(), "--json".into()];
        for address in &server.addresses {
            args.extend(["--connect".to_owned(), address.to_string()]);
        }
        args.extend(load::flags(plan).split(' ').map(str::to_owned));
        args.extend(["--server-pid".to_owned(), server.pid().to_string()]);
        if let Some(cpu) = self.placement.client {
            args.extend(["--pin".to_owned(), cpu.to_string()]);
        }
        let progress = &mut self.progress;
        self.children
            .json(&args, time + PATIENCE, &mut || progress.tick())
    }

    /// Keeps the server's CPU from halting while the result lives, if the client has another one.
    pub(crate) fn awake(&self) -> Option<Awake> {
        self.placement.client?;
        Awake::on(*self.placement.server.first()?).ok()
    }

    /// Makes one measurement.
    pub(crate) fn measure(&mut self, measurement: &Measurement<'_>) -> Result<Report> {
        let time = planned(measurement.warmup, measurement.duration);
        self.progress.step(measurement.label, time);
        let args = measurement.args(self.placement.client);
        let progress = &mut self.progress;
        self.children
            .json(&args, time + PATIENCE, &mut || progress.tick())
    }
}

/// Turns a failed measurement into its message; an interruption stays an error.
pub(crate) fn keep_going<T>(result: Result<T>) -> Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(error) if error.is::<Interrupted>() => Err(error),
        Err(error) => Ok(Err(format!("{error:#}"))),
    }
}
