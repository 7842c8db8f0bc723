//! Shows the whole machine: fetches the *census*, the state that `upshift daemon` reports, and
//! formats it as tables.

use anyhow::{Context, Result, anyhow};
use serde::Deserialize;

use super::figures::{age, rate};
use upshift_report::Table;

/// Displayed parts of the census; docs/daemon.md describes the whole census.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Machine {
    pub(super) pid: u32,
    pub(super) uptime_ms: u64,
    /// Set if the daemon elevates threads; otherwise processes yield voluntarily.
    pub(super) enforcing: bool,
    pub(super) bitmap: u64,
    pub(super) registrations: u64,
    pub(super) refused: u64,
    pub(super) ejected: u64,
    pub(super) cpus: Vec<Cpu>,
    pub(super) processes: Vec<Process>,
    /// The unparsed census.
    #[serde(skip)]
    pub(super) json: String,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Cpu {
    pub(super) cpu: usize,
    pub(super) bitmap: u64,
    /// Session number of the process that runs first on this CPU.
    pub(super) winner: Option<u32>,
    pub(super) level: Option<u8>,
    pub(super) contenders: u32,
    pub(super) switches: u64,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Process {
    pub(super) session: u32,
    pub(super) pid: i32,
    pub(super) uid: u32,
    pub(super) command: String,
    pub(super) ceiling: u8,
    pub(super) vcpus: Vec<Vcpu>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Vcpu {
    pub(super) cpu: usize,
    pub(super) bitmap: u64,
    pub(super) running: Option<u8>,
    /// SCHED_FIFO priority; 0 if not elevated.
    pub(super) band: u8,
    pub(super) winner: bool,
    pub(super) wins: u64,
}

pub(super) fn fetch() -> Result<Machine> {
    let socket = upshift_board::client::find().ok_or_else(|| {
        anyhow!("no `upshift daemon` listens here: start one (`upshift help daemon`)")
    })?;
    let census = upshift_board::client::census(&socket)
        .with_context(|| format!("cannot ask the daemon at {}", socket.display()))?;
    parse(census.json)
}

fn parse(json: String) -> Result<Machine> {
    let mut machine: Machine = serde_json::from_str(&json).context(
        "the daemon answers in a form that this command does not know: are both of one version?",
    )?;
    for process in &mut machine.processes {
        process.command.retain(|c| !c.is_control());
    }
    machine.json = json;
    Ok(machine)
}

/// Columns of the table of CPUs; `<` marks left-aligned columns.
pub(super) const CPU_COLUMNS: [&str; 6] = [
    "CPU",
    "switches/s",
    "contenders",
    "level",
    "<levels",
    "<runs",
];
/// Columns of the table of vCPUs.
pub(super) const VCPU_COLUMNS: [&str; 9] = [
    "PID", "user", "ceiling", "CPU", "running", "band", "wins", "<levels", "<command",
];

fn level_or_dash(level: Option<u8>) -> String {
    level.map_or_else(|| "–".into(), |level| level.to_string())
}

/// Formats a bitmap as a list of levels.
pub(super) fn levels(bitmap: u64) -> String {
    let set = (0..64).filter(|level| bitmap >> level & 1 == 1);
    let text = set
        .map(|level: u32| level.to_string())
        .collect::<Vec<_>>()
        .join(" ");
    if text.is_empty() { "–".into() } else { text }
}

impl Machine {
    pub(super) fn cpu_cells(&self, before: Option<&Machine>) -> impl Iterator<Item = [String; 6]> {
        self.cpus.iter().map(move |cpu| {
            [
                cpu.cpu.to_string(),
                rate(self.switches_per_s(before, cpu.cpu)),
                cpu.contenders.to_string(),
                level_or_dash(cpu.level),
                levels(cpu.bitmap),
                self.winner(cpu),
            ]
        })
    }

    /// Returns a row for each vCPU of each process, and whether the vCPU runs first on its CPU.
    pub(super) fn vcpu_cells(&self) -> impl Iterator<Item = ([String; 9], bool)> {
        self.processes.iter().flat_map(|process| {
            process.vcpus.iter().map(move |vcpu| {
                let cells = [
                    process.pid.to_string(),
                    process.uid.to_string(),
                    process.ceiling.to_string(),
                    vcpu.cpu.to_string(),
                    level_or_dash(vcpu.running),
                    band(vcpu),
                    vcpu.wins.to_string(),
                    levels(vcpu.bitmap),
                    process.command.clone(),
                ];
                (cells, vcpu.winner)
            })
        })
    }

    /// Returns how often per second the winner of a CPU has changed since an earlier census.
    fn switches_per_s(&self, before: Option<&Machine>, cpu: usize) -> f64 {
        let of = |machine: &Machine| {
            let line = machine.cpus.iter().find(|line| line.cpu == cpu)?;
            Some((line.switches, machine.uptime_ms))
        };
        match (of(self), before.and_then(of)) {
            (Some(now), Some(then)) if now.1 > then.1 => {
                now.0.saturating_sub(then.0) as f64 * 1e3 / (now.1 - then.1) as f64
            }
            _ => 0.0,
        }
    }

    fn process(&self, session: u32) -> Option<&Process> {
        self.processes
            .iter()
            .find(|process| process.session == session)
    }

    fn winner(&self, cpu: &Cpu) -> String {
        match cpu.winner.and_then(|session| self.process(session)) {
            Some(process) => format!("{} {}", process.pid, process.command),
            None => "–".into(),
        }
    }

    pub(super) fn mode(&self) -> &'static str {
        if self.enforcing {
            "elevates threads"
        } else {
            "cooperative: processes yield voluntarily"
        }
    }
}

/// Formats the census as text with tables.
pub(super) fn text(machine: &Machine, before: Option<&Machine>) -> String {
    let mut text = format!(
        "upshift daemon {}, up {}: {}\n{} registrations so far, {} refused, {} ejected; levels runnable: {}\n\n",
        machine.pid,
        age(machine.uptime_ms.saturating_mul(1_000_000)),
        machine.mode(),
        machine.registrations,
        machine.refused,
        machine.ejected,
        levels(machine.bitmap),
    );
    let mut cpus = Table::new("CPUs", &CPU_COLUMNS);
    for cells in machine.cpu_cells(before) {
        cpus.row(cells);
    }
    text.push_str(&cpus.to_string());
    text.push('\n');
    let mut processes = Table::new("Processes, a line per vCPU", &VCPU_COLUMNS);
    for (cells, _) in machine.vcpu_cells() {
        processes.row(cells);
    }
    text.push_str(&processes.to_string());
    text
}

/// Formats the SCHED_FIFO priority of a vCPU's threads, marked if the vCPU runs first on its CPU.
fn band(vcpu: &Vcpu) -> String {
    match (vcpu.band, vcpu.winner) {
        (0, true) => "*".into(),
        (0, false) => "–".into(),
        (band, true) => format!("{band}*"),
        (band, false) => band.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) const CENSUS: &str = r#"{"version":1,"generation":7,"pid":99,"uptime_ms":2000,"enforcing":true,
        "bitmap":1099511627780,"registrations":2,"refused":0,"ejected":0,
        "cpus":[{"cpu":0,"bitmap":1099511627780,"winner":1,"level":2,"contenders":2,"switches":500}],
        "processes":[
          {"session":1,"pid":10,"uid":0,"command":"api\u001b[2J","ceiling":0,"joined_ms":1,"vcpus":[
            {"index":0,"cpu":0,"bitmap":4,"running":2,"awaited":null,"potential":2,"band":20,"winner":true,
             "wins":5,"rings":0,"floods":0,"overdrafts":0,"pauses":0,"turns":1,"threads":[]}]},
          {"session":2,"pid":11,"uid":1000,"command":"batch","ceiling":32,"joined_ms":1,"vcpus":[
            {"index":0,"cpu":0,"bitmap":1099511627776,"running":null,"awaited":null,"potential":40,"band":0,
             "winner":false,"wins":4,"rings":0,"floods":0,"overdrafts":0,"pauses":0,"turns":1,"threads":[]}]}]}"#;

    pub(crate) fn sample() -> Machine {
        parse(CENSUS.into()).unwrap()
    }

    #[test]
    fn the_census_is_read_and_shown() {
        let now = sample();
        let mut before = now.clone();
        before.uptime_ms = 1_000;
        before.cpus[0].switches = 400;
        assert_eq!(now.switches_per_s(Some(&before), 0), 100.0);
        let text = text(&now, Some(&before));
        assert!(text.contains("20*") && text.contains("2 40"), "{text}");
        assert!(text.contains("10 api[2J"), "{text}");
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn a_census_in_another_form_is_an_error_with_advice() {
        let error = parse("{}".into()).unwrap_err().to_string();
        assert!(error.contains("one version"), "{error}");
    }
}
