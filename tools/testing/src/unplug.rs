//! Unplugs a CPU for a test, which affects every program of the machine.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// A CPU that is offline until this value is dropped, and for at most 15 s.
///
/// A shell plugs the CPU in again when the shell's input ends, so the CPU also returns if this
/// process is killed.
///
/// # Panics
/// Dropping panics if the CPU is still offline afterwards.
pub struct UnpluggedCpu {
    shell: Child,
    online_file: PathBuf,
}

impl UnpluggedCpu {
    /// Unplugs a CPU.
    ///
    /// # Errors
    /// The kernel refuses, or this process lacks the rights.
    pub fn new(cpu: usize) -> io::Result<Self> {
        let online_file = online_file(cpu);
        let plug_in = format!(
            "timeout 15 cat > /dev/null; echo 1 > {}",
            online_file.display()
        );
        let shell = Command::new("setsid")
            .args(["sh", "-c", &plug_in])
            .stdin(Stdio::piped())
            .spawn()?;
        std::fs::write(&online_file, "0")?;
        Ok(Self { shell, online_file })
    }
}

impl Drop for UnpluggedCpu {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
        let online = std::fs::read_to_string(&self.online_file).unwrap_or_default();
        let file = self.online_file.display();
        assert_eq!(
            online.trim(),
            "1",
            "a CPU is still offline: echo 1 > {file}"
        );
    }
}

/// Returns whether this process may unplug the CPU.
pub fn can_unplug(cpu: usize) -> bool {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).open(online_file(cpu)).is_ok()
}

fn online_file(cpu: usize) -> PathBuf {
    format!("/sys/devices/system/cpu/cpu{cpu}/online").into()
}
