//! Starts the machine, collects its output, and ends it at its time limit.

use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::build::Image;
use crate::disk::{Content, Disk};
use crate::state;

/// Longest turn of a hart in instructions, where time counts instructions. Shorter turns cost more
/// time of the host. Longer turns cost more instructions, because a hart whose turn ends inside a
/// lock makes the other harts spin through their turns.
const MAX_TURN: u64 = 10_000;

/// Maximum interval that counts between two checks of the machine. After a longer gap, the host and
/// the machine were stopped for the excess.
const MAX_STEP: Duration = Duration::from_secs(1);

/// Limit of the uncounted time in which QEMU waits for a CPU, in multiples of the time limit.
const MAX_CPU_WAIT: u32 = 4;

pub(crate) struct Machine {
    pub(crate) smp: u32,
    /// QEMU's name of the processor; empty for the default.
    pub(crate) cpu: &'static str,
    /// Set if time counts instructions, which is deterministic. Several harts take turns of at most
    /// [`MAX_TURN`].
    pub(crate) icount: bool,
    /// Binary logarithm of the nanoseconds per instruction, where time counts instructions.
    pub(crate) shift: u32,
    pub(crate) network: Network,
    /// Content of the disk, if the machine has a disk.
    pub(crate) disk: Option<Content>,
    pub(crate) arguments: String,
}

impl Machine {
    /// Returns a machine with `smp` harts and no devices.
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

/// A network card on a user-mode network of QEMU. Frames leave that network only if the variant
/// says so.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Network {
    No,
    /// A card in a modern slot.
    Modern,
    /// A card in a legacy slot, without the event index.
    Legacy,
    /// A card in a modern slot; this port of 127.0.0.1 is forwarded to a port of the machine.
    ForwardedTo {
        port: u16,
        to: u16,
    },
    /// A card in a modern slot; this port of 127.0.0.1 is forwarded to port 7 of the machine.
    Forwarded(u16),
    /// `Forwarded` for TCP and UDP. Frames may leave the network, because QEMU drops the datagrams
    /// that return through a restricted network.
    ForwardedDatagrams(u16),
    /// `Forwarded` for consecutive ports. Each group of `ports_per_server` ports leads to one port
    /// of the machine, from 7000 on. QEMU's backlog at a forwarded port is one connection, so most
    /// of several simultaneous connections would be lost on the host and retried after 1, 3, 7 and
    /// 15 seconds.
    Served {
        first: u16,
        count: u16,
        ports_per_server: u16,
    },
    /// A network of two peers: each frame is a datagram between these ports of 127.0.0.1.
    Wire {
        machine: u16,
        peer: u16,
    },
}

pub(crate) struct Outcome {
    pub(crate) output: String,
    /// The exit status; `None` if the process did not exit by itself.
    pub(crate) status: Option<i32>,
    /// Description of the end, for messages.
    pub(crate) end: String,
    /// State of the machine when it was killed, if it was.
    pub(crate) state: Option<String>,
    /// Frames of the network card, if the machine has a peer.
    pub(crate) record: Option<Vec<u8>>,
    pub(crate) duration: Duration,
}

/// Returns the QEMU command for a machine, without options for console and monitor. By default both
/// are on the terminal, and Ctrl-A X ends the machine.
///
/// Where time counts instructions, QEMU runs all harts in one thread. A hart runs until the
/// machine's next timer is due, or until it waits; therefore a timer is due every [`MAX_TURN`]. The
/// hart after a hart that a timer stopped gets a turn of no instructions, and would never run
/// beside a busy hart. Therefore every second hart is one that the kernel does not use.
pub(crate) fn command(image: &Image, machine: &Machine, disk: Option<&Path>) -> Command {
    let takes_turns = machine.icount && machine.smp > 1;
    let (harts, arguments) = if takes_turns {
        (
            2 * machine.smp,
            format!("{} harts=alternate", machine.arguments),
        )
    } else {
        (machine.smp, machine.arguments.clone())
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
    let is_legacy = machine.network == Network::Legacy;
    command.args(["-global", &format!("virtio-mmio.force-legacy={is_legacy}")]);
    if machine.network != Network::No {
        let network = match machine.network {
            Network::Forwarded(port) => {
                format!("user,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:7")
            }
            Network::ForwardedTo { port, to } => {
                format!("user,restrict=on,hostfwd=tcp:127.0.0.1:{port}-:{to}")
            }
            // The server never sends before a client has contacted it.
            Network::ForwardedDatagrams(port) => {
                format!("user,hostfwd=tcp:127.0.0.1:{port}-:7,hostfwd=udp:127.0.0.1:{port}-:7")
            }
            Network::Served {
                first,
                count,
                ports_per_server,
            } => {
                let forward = |n| {
                    let (port, to) = (first + n, 7000 + n / ports_per_server);
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
        let events = if is_legacy { "off" } else { "on" };
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
        // Without a timer QEMU would not serve the disk while the hart waits for it. The timer of
        // this object fires periodically and has no effect, because its network has no packets and
        // no device.
        let micros = (MAX_TURN << machine.shift).div_ceil(1_000);
        let filter = format!("filter-buffer,id=turns,netdev=none,interval={micros}");
        command.args(["-netdev", "hubport,id=none,hubid=0", "-object", &filter]);
    }
    command
}

/// Returns a message with a remedy for a QEMU that does not start.
pub(crate) fn explain(error: io::Error) -> String {
    format!(
        "qemu-system-riscv64 does not start: {error}; on Debian: apt-get install qemu-system-misc"
    )
}

/// Boots with an empty disk, if the machine has a disk, and waits until the machine stops. Time in
/// which the host is suspended does not count towards `limit`.
pub(crate) fn run(image: &Image, machine: &Machine, limit: Duration) -> Result<Outcome, String> {
    let disk = machine.disk.map(Disk::new).transpose()?;
    run_on(image, machine, disk.as_ref().map(Disk::path), limit)
}

/// Runs a machine like [`run`], with a disk that another machine may have used.
pub(crate) fn run_on(
    image: &Image,
    machine: &Machine,
    disk: Option<&Path>,
    limit: Duration,
) -> Result<Outcome, String> {
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let start = Instant::now();
    let (process, run) = (std::process::id(), RUNS.fetch_add(1, Relaxed));
    let path = std::env::temp_dir().join(format!("os-runner-{process}-{run}"));
    let record = Temporary(path.with_extension("pcap"));
    let monitor = Temporary(path);
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
    let (mut waited, mut last_check) = (Duration::ZERO, start);
    let end = loop {
        if let Some(status) = child.try_wait().map_err(explain)? {
            break Some(status);
        }
        let since = core::mem::replace(&mut last_check, Instant::now()).elapsed();
        waited += since.min(MAX_STEP);
        let is_late =
            waited > limit && waited > limit + cpu_wait(child.id()).min(limit * MAX_CPU_WAIT);
        if is_late {
            state = Some(state::query(&monitor.0));
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
        end: describe_end(end, limit),
        state,
        record: std::fs::read(&record.0).ok().filter(|_| is_recorded),
        duration: start.elapsed(),
    })
}

/// Returns the longest time for which a thread of the process has waited for a CPU because the host
/// ran other processes.
fn cpu_wait(process: u32) -> Duration {
    let threads = std::fs::read_dir(format!("/proc/{process}/task"));
    let delay = |thread: std::fs::DirEntry| {
        let times = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        times.split_whitespace().nth(1)?.parse().ok()
    };
    let delays = threads.into_iter().flatten().flatten().filter_map(delay);
    Duration::from_nanos(delays.max().unwrap_or(0))
}

/// Describes the end of QEMU, which was killed if `end` is `None`.
fn describe_end(end: Option<ExitStatus>, limit: Duration) -> String {
    match end.map(|end| (end.code(), end.signal())) {
        None => format!("no end within {limit:?}"),
        Some((Some(code), _)) => format!("exit status {code}"),
        Some((None, signal)) => format!("QEMU was ended by signal {}", signal.unwrap_or(0)),
    }
}

/// The socket of a monitor, or a record; removed on drop.
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

    /// If more threads are busy than there are CPUs, at least one of them waits for a CPU.
    #[test]
    fn time_without_a_cpu_is_measured() {
        let cpus = std::thread::available_parallelism().map_or(1, |count| count.get());
        let (is_over, before) = (Arc::new(AtomicBool::new(false)), Instant::now());
        let compute = |is_over: Arc<AtomicBool>| move || while !is_over.load(Relaxed) {};
        let threads: Vec<_> = (0..4 * cpus)
            .map(|_| std::thread::spawn(compute(is_over.clone())))
            .collect();
        let mut longest_wait = Duration::ZERO;
        while longest_wait < Duration::from_millis(20) && before.elapsed() < Duration::from_secs(60)
        {
            std::thread::sleep(Duration::from_millis(10));
            longest_wait = cpu_wait(std::process::id());
        }
        is_over.store(true, Relaxed);
        threads
            .into_iter()
            .for_each(|thread| thread.join().expect("the thread computes"));
        assert!(
            longest_wait >= Duration::from_millis(20),
            "the longest wait for a CPU is {longest_wait:?}"
        );
        assert_eq!(cpu_wait(u32::MAX), Duration::ZERO);
    }
}
