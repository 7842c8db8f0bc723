//! [`Scheduler`] runs an engine on a separate thread, above the tasks.

use std::io;
use std::thread::{Builder, JoinHandle};

use upshift_elevate::{Elevated, Elevator, Priority};

use crate::clock::Monotonic;
use crate::control::Control;
use crate::engine::Engine;
use crate::error::SchedError;
use crate::member::Member;
use crate::report::{Report, Trace};

/// A running engine. Dropping it stops the engine and restores its tasks.
#[derive(Debug)]
pub struct Scheduler {
    control: Control,
    thread: Option<JoinHandle<Ended>>,
}

/// The result of an engine. All tasks have been restored before it is returned.
pub type Ended = Result<(Report, Trace), SchedError>;

impl Scheduler {
    /// Starts a thread, pins it to `cpu`, elevates it to `priority`, and runs the engine that
    /// `build` creates. `priority` must be above the engine's [`Config::top`](crate::Config::top).
    /// `build` attaches the tasks on the new thread, so that tasks that are already elevated cannot
    /// keep this thread from the CPU.
    ///
    /// # Errors
    /// The thread could not be started, elevated or pinned, or `build` failed. Attached tasks have
    /// then been restored.
    pub fn start<M: Member, E: From<SchedError> + Send + 'static>(
        elevator: &Elevator,
        cpu: usize,
        priority: Priority,
        build: impl FnOnce() -> Result<Engine<M>, E> + Send + 'static,
    ) -> Result<Scheduler, E> {
        let elevator = elevator.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let run = move || -> Ended {
            let built = elevate_current(&elevator, cpu, priority)
                .map_err(E::from)
                .and_then(|guard| Ok((guard, build()?)));
            // These values are dropped in reverse order. So if the policy panics, the tasks are
            // restored before the thread sinks below them.
            let (guard, mut engine) = match built {
                Ok(built) => built,
                Err(error) => {
                    // The calling thread waits for this message.
                    let _ = ready.send(Err(error));
                    return Ok(Default::default());
                }
            };
            let _ = ready.send(Ok(engine.control()));
            let result = engine.run(&mut Monotonic);
            let trace = engine.trace().clone();
            // The tasks are restored before this thread is demoted, so that no other thread delays
            // their restoration.
            drop(engine);
            drop(guard);
            result.map(|report| (report, trace))
        };
        let thread = Builder::new().name("upshift-sched".into()).spawn(run);
        let thread = thread.map_err(SchedError::os("start a thread"))?;
        match is_ready.recv() {
            Ok(Ok(control)) => Ok(Scheduler {
                control,
                thread: Some(thread),
            }),
            Ok(Err(error)) => {
                // The thread is ending, and its result is empty.
                let _ = thread.join();
                Err(error)
            }
            Err(_) => Err(panicked().into()),
        }
    }

    /// Returns the handle for messages to the engine.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Returns whether the engine has ended, for example because all tasks have ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until the engine has ended.
    ///
    /// # Errors
    /// The error that ended the engine early.
    pub fn wait(mut self) -> Ended {
        self.join()
    }

    /// Stops the engine and restores the tasks.
    ///
    /// # Errors
    /// The errors of [`Scheduler::wait`].
    pub fn stop(mut self) -> Ended {
        self.control.stop();
        self.join()
    }

    fn join(&mut self) -> Ended {
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|payload| {
                // The type of the payload may belong to the policy, and its destructor may panic,
                // so the payload is leaked.
                std::mem::forget(payload);
                panicked()
            })?,
            None => Ok(Default::default()),
        }
    }
}

fn panicked() -> SchedError {
    SchedError::Os {
        what: "continue scheduling",
        error: io::Error::other("a policy panicked"),
    }
}

fn elevate_current(
    elevator: &Elevator,
    cpu: usize,
    priority: Priority,
) -> Result<Elevated, SchedError> {
    let own_pid = std::process::id() as i32;
    let guard = elevator.elevate_current(priority);
    let guard = guard.map_err(|error| SchedError::refused(own_pid, error))?;
    match guard.pin(cpu) {
        Ok(()) => Ok(guard),
        Err(error) => Err(SchedError::Cpu { cpu, error }),
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.control.stop();
            // A destructor cannot report the error.
            let _ = self.join();
        }
    }
}
