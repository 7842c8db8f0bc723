//! Starts child processes, and waits for their ends.
//!
//! A program is started on a thread for blocking calls, because the start takes as long as a `fork`
//! and an `exec`. So the program starts with the ordinary scheduling policy and on all CPUs of the
//! process, even if the thread that requested the start is pinned or has a real-time priority. A
//! poll operation on the ring waits for the end of the program, on a descriptor of the process
//! (pidfd). There is no signal handler, and no waiting thread except one for all children whose
//! [`Child`] was dropped.
//!
//! ```
//! # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
//! use upshift::process::Command;
//!
//! let output = Command::new("echo").arg("hello").output().await?;
//! assert!(output.status.success());
//! assert_eq!(output.stdout, b"hello\n");
//! # std::io::Result::Ok(()) }).unwrap();
//! ```

mod child;
mod command;
mod reaper;

pub use child::{Child, ChildStderr, ChildStdin, ChildStdout};
pub use command::Command;
pub use std::process::{ExitStatus, Output, Stdio};
