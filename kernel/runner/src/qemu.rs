//! Starts the machine, collects what it says, ends it in time.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::build::Image;
use crate::disk::{Content, Disk};
use crate::state;

/// The longest turn of a hart where time counts instructions, in instructions. A hart whose turn ends inside a lock makes the
/// others spin through theirs: shorter turns cost the host time, longer ones the machine instructions.
const TURN: u64 = 10_000;

/// Between two looks at the machine. If more time passes, the host stood still, and the machine
/// with it: that does not count.
const STANDSTILL: Duration = Duration::from_secs(1);

/// Nor does time count in which QEMU waits for a CPU, up to so many times the limit.
const MOST_UNSERVED: u32 = 4;

/// How to boot.
pub(crate) struct Machine {
    /// Harts.
    pub(crate) smp: u32,
    /// The processor, as QEMU calls it; empty: the usual one.
    pub(crate) cpu: &'static str,
    /// Time counts instructions: deterministic. Several harts take turns, each of at most [`TURN`].
    pub(crate) icount: bool,
    /// An instruction takes 2 to this power nanoseconds, where time counts instructions.
    pub(crate) shift: u32,
    /// Its network card.
    pub(crate) network: Network,
    /// What is on its disk, if it has one.
    pub(crate) disk: Option<Content>,
    /// The kernel's command line.
    pub(crate) arguments: String,
}

impl Machine {
    /// One with so many harts, and nothing else.
    pub(crate) fn new(smp: u32, arguments: &str) -> Machine {
        Machine {
            smp,
            cpu: "",
            icount: false,
            shift: 0,
            network: Network::No,
            disk: None,
            arguments: arguments.to_owned(),
        }
    }
}

/// A network card, on a network of its own that QEMU makes up; nothing gets out of it but where
/// it says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    /// None.
    No,
    /// In a modern slot.
    Modern,
    /// In a legacy slot, without the event index.
    Legacy,
    /// A card in a modern slot; this port of 127.0.0.1 is forwarded to a port of the machine.
    ForwardedTo { port: u16, to: u16 },
    /// In a modern slot; this port of 127.0.0.1 is forwarded to port 7 of the machine.
    Forwarded(u16),
    /// The same, for UDP as well. This one lets frames out: QEMU drops datagrams on their way back
    /// through a network that does not.
    ForwardedDatagrams(u16),
    /// The same, of so many ports from this one on, of which each `of_server` are forwarded to one port of the machine, from
    /// 7000 on. QEMU lets one connection wait at a port that it forwards: of those that come at once, most would be
    /// lost on the host and begun anew a second later, then three, seven, fifteen.
    Served {
        first: u16,
        count: u16,
        of_server: u16,
    },
    /// Of two: each frame is a datagram between these ports of 127.0.0.1.
    Wire { machine: u16, peer: u16 },
}

/// What came of a run.
pub(crate) struct Outcome {
    /// Everything on the console.
    pub(crate) output: String,
    /// The exit status; `None` if it has ended in another way.
    pub(crate) status: Option<i32>,
    /// How it has ended, in words.
    pub(crate) end: String,
    /// The machine's last state, if it had to be ended.
    pub(crate) state: Option<String>,
    /// What has passed its network card, if something outside speaks to it.
    pub(crate) record: Option<Vec<u8>>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// The QEMU command for a machine, without its console and monitor: if nothing else is said, both
/// are on the terminal, and Ctrl-A X ends the machine.
///
/// Where time counts instructions QEMU has one thread for all harts. One runs until the next
/// timer of the machine is due, or until it waits; so there is a timer that is due every
/// [`TURN`]. The hart after one that was stopped by a timer gets a turn of no
/// instructions, and would never run beside one that computes: it is one that the kernel
/// leaves alone.
pub(crate) fn command(image: &Image, machine: &Machine, disk: Option<&Path>) -> Command {
    let takes_turns = machine.icount && machine.smp > 1;
    let (harts, arguments) = match takes_turns {
        true => (
            2 * machine.smp,
            format!("{} harts=alternate", machine.arguments),
        ),
        false => (machine.smp, machine.arguments.clone()),
    };
    let mut command = Command::new("qemu-system-riscv64");
    command
        .args(["-machine", "virt", "-m", "128M", "-bios", "default"])
        .arg("-nographic")
        .args(["-no-reboot", "-smp", &harts.to_string()])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.archive)
        .args(["-append", &arguments]);
    let legacy = machine.network == Network::Legacy;
    command.args(["-global", &format!("virtio-mmio.force-legacy={legacy}")]);
    if machine.network != Network::No {
        let network = match machine.network {
            Network::Forwarded(port) => {
                format!("user,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:7")
            }
            Network::ForwardedTo { port, to } => {
                format!("user,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:{to}")
            }
            // A server here does not speak first.
            Network::ForwardedDatagrams(port) => {
                format!("user,hostfwd=tcp:127.0.0.1:{port}-:7,hostfwd=udp:127.0.0.1:{port}-:7")
            }
            Network::Served {
                first,
                count,
                of_server,
            } => {
                let forward = |n| {
                    let (port, to) = (first + n, 7000 + n / of_server);
                    format!(",hostfwd=tcp:127.0.0.1:{port}-:{to}")
                };
                let all: String = (0..count).map(forward).collect();
                format!("user,restrict=on{all}")
            }
            Network::Wire { machine, peer } => {
                format!("socket,udp=127.0.0.1:{peer},localaddr=127.0.0.1:{machine}")
            }
            _ => "user,restrict=on".to_owned(),
        };
        command.args(["-netdev", &format!("{network},id=net")]);
        let events = if legacy { "off" } else { "on" };
        let device = format!("virtio-net-device,netdev=net,event_idx={events}");
        command.args(["-device", &device]);
    }
    if let Some(disk) = disk {
        let drive = format!("if=none,id=disk,format=raw,file={}", disk.display());
        command.args(["-drive", &drive]);
        command.args(["-device", "virtio-blk-device,drive=disk"]);
    }
    if !machine.cpu.is_empty() {
        command.args(["-cpu", machine.cpu]);
    }
    if machine.icount {
        // Without `sleep=off`, idle time is tied to the host's clock.
        let icount = format!("shift={},sleep=off", machine.shift);
        command.args(["-icount", &icount]);
    }
    if takes_turns || machine.icount && disk.is_some() {
        // Without any timer QEMU would not see to the disk while the hart waits for it. The timer of this object is due all the time, and does nothing: the network that
        // it filters has no packets, and no device.
        let micros = (TURN << machine.shift).div_ceil(1_000);
        let filter = format!("filter-buffer,id=turns,netdev=none,interval={micros}");
        command.args(["-netdev", "hubport,id=none,hubid=0", "-object", &filter]);
    }
    command
}

/// What to do when QEMU does not start.
pub(crate) fn explain(error: io::Error) -> String {
    format!(
        "qemu-system-riscv64 does not start: {error}; on Debian: apt-get install qemu-system-misc"
    )
}

/// Boots with a disk of its own, if it has one, and waits for the end, at most `limit`, in which the
/// host does not stand still.
pub(crate) fn run(image: &Image, machine: &Machine, limit: Duration) -> Result<Outcome, String> {
    let disk = machine.disk.map(Disk::new).transpose()?;
    run_on(image, machine, disk.as_ref().map(Disk::path), limit)
}

/// The same, on a disk that may have been another machine's.
pub(crate) fn run_on(
    image: &Image,
    machine: &Machine,
    disk: Option<&Path>,
    limit: Duration,
) -> Result<Outcome, String> {
    boot(image, machine, disk, limit, &AtomicBool::new(false))
}

/// The same, without a disk, until `is_unwanted` is set: then it is ended.
pub(crate) fn run_until(
    image: &Image,
    machine: &Machine,
    limit: Duration,
    is_unwanted: &AtomicBool,
) -> Result<Outcome, String> {
    boot(image, machine, None, limit, is_unwanted)
}

fn boot(
    image: &Image,
    machine: &Machine,
    disk: Option<&Path>,
    limit: Duration,
    is_unwanted: &AtomicBool,
) -> Result<Outcome, String> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    let (process, run) = (std::process::id(), RUNS.fetch_add(1, Relaxed));
    let place = std::env::temp_dir().join(format!("os-runner-{process}-{run}"));
    let record = Temporary(place.with_extension("pcap"));
    let monitor = Temporary(place);
    let mut command = command(image, machine, disk);
    let is_recorded = matches!(
        machine.network,
        Network::Forwarded(_) | Network::ForwardedDatagrams(_)
    );
    if is_recorded {
        let file = record.0.display();
        let filter = format!("filter-dump,id=record,netdev=net,file={file}");
        command.args(["-object", &filter]);
    }
    let mut child = command
        .args(["-serial", "stdio", "-monitor"])
        .arg(format!("unix:{},server=on,wait=off", monitor.0.display()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .map_err(explain)?;
    let mut pipe = child.stdout.take().expect("stdout is piped");
    let reader = std::thread::spawn(move || {
        let mut output = Vec::new();
        let _ = pipe.read_to_end(&mut output);
        String::from_utf8_lossy(&output).into_owned()
    });
    let mut state = None;
    let (mut waited, mut looked) = (Duration::ZERO, start);
    let end = loop {
        if let Some(status) = child.try_wait().map_err(explain)? {
            break Some(status);
        }
        let since = core::mem::replace(&mut looked, Instant::now()).elapsed();
        waited += since.min(STANDSTILL);
        let is_late =
            waited > limit && waited > limit + unserved(child.id()).min(limit * MOST_UNSERVED);
        if is_late || is_unwanted.load(Relaxed) {
            state = Some(state::ask(&monitor.0));
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let output = reader.join().unwrap_or_default();
    Ok(Outcome {
        output,
        status: end.and_then(|end| end.code()),
        end: in_words(end, limit),
        state,
        record: std::fs::read(&record.0).ok().filter(|_| is_recorded),
        took: start.elapsed(),
    })
}

/// How long the thread of a process that waited longest for a CPU has done so: that time is the host's, which runs others.
fn unserved(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let delay = |thread: std::fs::DirEntry| {
        let times = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_whitespace().nth(1)?.parse().ok()
    };
    let delays = threads.into_iter().flatten().flatten().filter_map(delay);
    Duration::from_nanos(delays.max().unwrap_or(0))
}

/// How QEMU has ended; `None`: it was ended.
fn in_words(end: Option<ExitStatus>, limit: Duration) -> String {
    match end.map(|end| (end.code(), end.signal())) {
        None => format!("no end within {limit:?}"),
        Some((Some(code), _)) => format!("exit status {code}"),
        Some((None, signal)) => format!("QEMU was ended by signal {}", signal.unwrap_or(0)),
    }
}

/// The socket of a monitor, or a record, taken away in the end.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    /// Of more threads than CPUs that all compute, one at least has waited for a CPU.
    #[test]
    fn time_without_a_cpu_is_seen() {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (is_over, before) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let compute = |is_over: Arc<AtomicBool>| move || while !is_over.load(Relaxed) {};
        let threads: Vec<_> = (0..4 * cpus)
            .map(|_| std::thread::spawn(compute(is_over.clone())))
            .collect();
        let mut seen = Duration::ZERO;
        while seen < Duration::from_millis(20) && before.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
            seen = unserved(std::process::id());
        }
        is_over.store(true, Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("it computes"));
        assert!(seen >= Duration::from_millis(20), "{seen:?}");
        assert_eq!(unserved(u32::MAX), Duration::ZERO);
    }
}
