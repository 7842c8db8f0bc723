//! A conversation on a machine's console: typed lines and their answers.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::build::Image;
use crate::qemu::{self, Machine};

/// Longest silence of a machine that owes an answer.
const LIMIT: Duration = Duration::from_secs(240);

/// A running machine, killed on drop.
pub(crate) struct Session {
    machine: Child,
    keyboard: Option<ChildStdin>,
    screen: Receiver<Vec<u8>>,
    /// Output that was read but not yet consumed.
    said: String,
}

impl Session {
    /// Boots a machine.
    ///
    /// # Errors
    /// Fails if QEMU does not start.
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
        let keyboard = machine.stdin.take();
        let mut output = machine.stdout.take().expect("stdout is piped");
        let (parts, screen) = mpsc::channel();
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = output.read(&mut part) {
                if parts.send(part[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Session {
            machine,
            keyboard,
            screen,
            said: String::new(),
        })
    }

    /// Types a text.
    ///
    /// # Errors
    /// Fails if the machine has ended.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), String> {
        let keyboard = self.keyboard.as_mut().ok_or("the keyboard is gone")?;
        let typed = keyboard
            .write_all(text.as_bytes())
            .and_then(|()| keyboard.flush());
        typed.map_err(|error| format!("the machine takes no input: {error}"))
    }

    /// Waits until the machine prints `text`; returns the output up to the end of it.
    ///
    /// # Errors
    /// Fails if the machine prints nothing for [`LIMIT`], or ends.
    pub(crate) fn read_to(&mut self, text: &str) -> Result<String, String> {
        loop {
            if let Some(at) = self.said.find(text) {
                let rest = self.said.split_off(at + text.len());
                return Ok(core::mem::replace(&mut self.said, rest));
            }
            match self.screen.recv_timeout(LIMIT) {
                // The console is ASCII except for texts of the tests, which arrive whole.
                Ok(part) => self.said += &String::from_utf8_lossy(&part),
                Err(why) => {
                    let why = match why {
                        RecvTimeoutError::Timeout => "says nothing more",
                        RecvTimeoutError::Disconnected => "has ended",
                    };
                    return Err(format!(
                        "the machine {why} instead of `{text}`, after:\n{}",
                        self.said
                    ));
                }
            }
        }
    }

    /// Waits for the end of the machine; returns its status and its last output.
    ///
    /// # Errors
    /// Fails if the machine does not end in time.
    pub(crate) fn end(mut self) -> Result<(Option<i32>, String), String> {
        loop {
            match self.screen.recv_timeout(LIMIT) {
                Ok(part) => self.said += &String::from_utf8_lossy(&part),
                Err(RecvTimeoutError::Timeout) => {
                    return Err(format!("the machine does not end, after:\n{}", self.said));
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let status = self.machine.wait().map_err(qemu::explain)?;
        Ok((status.code(), core::mem::take(&mut self.said)))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.machine.kill();
        let _ = self.machine.wait();
    }
}
