//! Starts the machine, collects what it says, ends it in time.

use std::io::{self, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::build::Image;

/// How to boot.
pub(crate) struct Machine {
    /// Harts.
    pub(crate) smp: u32,
    /// The processor, as QEMU calls it; empty: the usual one.
    pub(crate) cpu: &'static str,
    /// Time counts instructions: deterministic. One hart only.
    pub(crate) icount: bool,
    /// The kernel's command line.
    pub(crate) arguments: String,
}

/// What came of a run.
pub(crate) struct Outcome {
    /// Everything on the console.
    pub(crate) output: String,
    /// The exit status; `None` if it had to be ended.
    pub(crate) status: Option<i32>,
    /// How long it took.
    pub(crate) took: Duration,
}

/// The QEMU command for a machine.
pub(crate) fn command(image: &Image, machine: &Machine) -> Command {
    let mut command = Command::new("qemu-system-riscv64");
    command
        .args(["-machine", "virt", "-m", "128M", "-bios", "default"])
        .args(["-nographic", "-serial", "stdio", "-monitor", "none"])
        .args(["-no-reboot", "-smp", &machine.smp.to_string()])
        .args(["-global", "virtio-mmio.force-legacy=false"])
        .arg("-kernel")
        .arg(&image.kernel)
        .arg("-initrd")
        .arg(&image.archive)
        .args(["-append", &machine.arguments]);
    if !machine.cpu.is_empty() {
        command.args(["-cpu", machine.cpu]);
    }
    if machine.icount {
        // Without `sleep=off`, idle time is tied to the host's clock.
        command.args(["-icount", "shift=0,sleep=off"]);
    }
    command
}

/// What to do when QEMU does not start.
pub(crate) fn explain(error: io::Error) -> String {
    format!(
        "qemu-system-riscv64 does not start: {error}; on Debian: apt-get install qemu-system-misc"
    )
}

/// Boots and waits for the end, at most `limit`.
pub(crate) fn run(image: &Image, machine: &Machine, limit: Duration) -> Result<Outcome, String> {
    let start = Instant::now();
    let mut child = command(image, machine)
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
    let status = loop {
        if let Some(status) = child.try_wait().map_err(explain)? {
            break status.code();
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let output = reader.join().unwrap_or_default();
    Ok(Outcome {
        output,
        status,
        took: start.elapsed(),
    })
}
