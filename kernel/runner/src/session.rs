//! Drives the console of a machine: types lines and reads the output.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::build::Image;
use crate::qemu::{self, Machine};

/// Maximum silence of a machine while output is expected.
const LIMIT: Duration = Duration::from_secs(240);

/// A running machine, killed on drop.
pub(crate) struct Session {
    machine: Child,
    input: Option<ChildStdin>,
    output: Receiver<Vec<u8>>,
    /// Output that has been read but not consumed.
    buffered: String,
}

impl Session {
    pub(crate) fn boot(
        image: &Image,
        machine: &Machine,
        disk: Option<&Path>,
    ) -> Result<Session, String> {
        let mut machine = qemu::command(image, machine, disk)
            .args(["-serial", "stdio", "-monitor", "none"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(qemu::explain)?;
        let input = machine.stdin.take();
        let mut stdout = machine.stdout.take().expect("stdout is piped");
        let (parts, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = stdout.read(&mut part) {
                if parts.send(part[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Session {
            machine,
            input,
            output,
            buffered: String::new(),
        })
    }

    /// Types a text.
    ///
    /// # Errors
    /// Fails if the machine has ended.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), String> {
        let input = self.input.as_mut().ok_or("the input is closed")?;
        let typed = input
            .write_all(text.as_bytes())
            .and_then(|()| input.flush());
        typed.map_err(|error| format!("the machine takes no input: {error}"))
    }

    /// Waits until the machine prints `text`; returns the output up to and including it.
    ///
    /// # Errors
    /// Fails if the machine prints nothing for [`LIMIT`], or ends.
    pub(crate) fn read_until(&mut self, text: &str) -> Result<String, String> {
        loop {
            if let Some(at) = self.buffered.find(text) {
                let rest = self.buffered.split_off(at + text.len());
                return Ok(core::mem::replace(&mut self.buffered, rest));
            }
            match self.output.recv_timeout(LIMIT) {
                // The console prints ASCII, except texts of the tests, which arrive whole.
                Ok(part) => self.buffered += &String::from_utf8_lossy(&part),
                Err(reason) => {
                    let reason = match reason {
                        RecvTimeoutError::Timeout => "prints nothing more",
                        RecvTimeoutError::Disconnected => "has ended",
                    };
                    return Err(format!(
                        "the machine {reason} instead of `{text}`, after:\n{}",
                        self.buffered
                    ));
                }
            }
        }
    }

    /// Waits until the machine has ended; returns its status and its last output.
    ///
    /// # Errors
    /// Fails if the machine does not end in time.
    pub(crate) fn end(mut self) -> Result<(Option<i32>, String), String> {
        loop {
            match self.output.recv_timeout(LIMIT) {
                Ok(part) => self.buffered += &String::from_utf8_lossy(&part),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!(
                        "the machine does not end, after:\n{}",
                        self.buffered
                    ));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.machine.wait().map_err(qemu::explain)?;
        Ok((status.code(), core::mem::take(&mut self.buffered)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
