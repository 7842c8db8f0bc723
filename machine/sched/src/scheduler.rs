//! [`Scheduler`]: an engine on a thread of its own, above the tasks.

use std::io;
use std::thread::{Builder, JoinHandle};

use upshift_elevate::{Elevated, Elevator, Priority};

use crate::clock::Monotonic;
use crate::control::Control;
use crate::engine::Engine;
use crate::error::SchedError;
use crate::member::Member;
use crate::report::{Report, Trace};

/// A running engine. Dropping it stops it and gives its tasks back.
#[derive(Debug)]
pub struct Scheduler {
    control: Control,
    thread: Option<JoinHandle<Ended>>,
}

/// How an engine ended: all tasks were given back before.
pub type Ended = Result<(Report, Trace), SchedError>;

impl Scheduler {
    /// Makes a thread, pins it to `cpu`, elevates it to `priority`, and runs there what `build` makes. `priority` must be above
    /// the engine's [`Config::top`](crate::Config::top). `build` attaches the tasks: on this thread, so that what it has
    /// elevated already cannot keep it from the CPU.
    ///
    /// # Errors
    /// The thread could not be made, elevated or pinned, or `build` failed. What was attached has been given back then.
    pub fn start<M: Member, E: From<SchedError> + Send + 'static>(
        elevator: &Elevator,
        cpu: usize,
        priority: Priority,
        build: impl FnOnce() -> Result<Engine<M>, E> + Send + 'static,
    ) -> Result<Scheduler, E> {
        let elevator = elevator.clone();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let run = move || -> Ended {
            let built = rise(&elevator, cpu, priority)
                .map_err(E::from)
                .and_then(|guard| Ok((guard, build()?)));
            // In this order: if the policy panics, the tasks are given back before the thread sinks below them.
            let (guard, mut engine) = match built {
                Ok(built) => built,
                Err(error) => {
                    // The thread that started this waits for it.
                    let _ = ready.send(Err(error));
                    return Ok(Default::default());
                }
            };
            let _ = ready.send(Ok(engine.control()));
            let result = engine.run(&mut Monotonic);
            let trace = engine.trace().clone();
            // The tasks before their scheduler: until they are back, nothing may get between.
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
                // It ends now, with nothing more to say.
                let _ = thread.join();
                Err(error)
            }
            Err(_) => Err(panicked().into()),
        }
    }

    /// What other threads tell it.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether it has ended: by itself, if all tasks have.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    /// What ended it early.
    pub fn wait(mut self) -> Ended {
        self.join()
    }

    /// Ends it and gives the tasks back.
    ///
    /// # Errors
    /// As [`Scheduler::wait`].
    pub fn stop(mut self) -> Ended {
        self.control.stop();
        self.join()
    }

    fn join(&mut self) -> Ended {
        match self.thread.take() {
            Some(thread) => thread.join().map_err(|payload| {
                // Its destructor may be the policy's, and panic: the payload is leaked.
                std::mem::forget(payload);
                panicked()
            })?,
            None => Ok(Default::default()),
        }
    }
}

fn panicked() -> SchedError {
    SchedError::Os {
        what: "go on scheduling",
        error: io::Error::other("a policy panicked"),
    }
}

/// Elevates and pins the calling thread.
fn rise(elevator: &Elevator, cpu: usize, priority: Priority) -> Result<Elevated, SchedError> {
    let own = std::process::id() as i32;
    let guard = elevator.elevate_current(priority);
    let guard = guard.map_err(|error| SchedError::refused(own, error))?;
    match guard.pin(cpu) {
        Ok(()) => Ok(guard),
        Err(error) => Err(SchedError::Cpu { cpu, error }),
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.control.stop();
            // What ended it has nowhere to go.
            let _ = self.join();
        }
    }
}
