//! Tests whether io_uring works here. The test uses the features that the driver needs, instead of
//! reading the kernel's version, because a kernel that has a feature may still forbid it.

use crate::config::Config;
use crate::pool::Pool;
use crate::setup::{build, errno_of, explain, missing_feature};
use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

const RECEIVE: u64 = 1;
const CANCEL: u64 = 2;

/// Tests the features of io_uring that the driver needs, on a small instance that is closed
/// afterwards. These features are setup, enter, buffer rings, multishot receive, and cancellation
/// of all operations. Makes about twenty system calls.
///
/// # Errors
/// A [`SetupError`](crate::SetupError) that names the feature that is missing or refused, with
/// advice.
pub fn ring() -> io::Result<()> {
    let config = Config {
        entries: 4,
        cq_entries: 8,
        ..Config::default()
    };
    let (mut ring, _) = build(&config)?;
    let pool = Pool::new(2, 64).map_err(|error| explain("cannot map receive buffers", &error))?;
    // SAFETY: the pool outlives the instance, which is closed first.
    let result = unsafe {
        ring.submitter()
            .register_buf_ring_with_flags(pool.address(), 2, 0, 0)
    };
    result.map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL) => missing_feature("buffer rings (Linux 5.19)"),
        _ => explain("cannot register receive buffers", &error),
    })?;
    let outcome = receive_and_cancel(&mut ring);
    drop(ring);
    drop(pool);
    outcome
}

fn receive_and_cancel(ring: &mut IoUring) -> io::Result<()> {
    let (receiver, mut sender) =
        UnixStream::pair().map_err(|error| explain("cannot make a socket", &error))?;
    sender.write_all(b"?")?;
    let receive = opcode::RecvMulti::new(Fd(receiver.as_raw_fd()), 0).build();
    let received = submit_and_wait(ring, &receive.user_data(RECEIVE))?;
    let is_multishot = received.result() == 1
        && cqueue::more(received.flags())
        && cqueue::buffer_select(received.flags()).is_some();
    if !is_multishot {
        return Err(missing_feature("multishot receives (Linux 6.0)"));
    }
    let cancel = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
    let mut completions = [
        submit_and_wait(ring, &cancel.user_data(CANCEL))?,
        wait_for_completion(ring)?,
    ];
    completions.sort_by_key(cqueue::Entry::user_data);
    let [receive, cancel] = completions;
    if cancel.result() < 0 || receive.result() != -libc::ECANCELED {
        return Err(missing_feature(
            "cancellation of all operations (Linux 5.19)",
        ));
    }
    Ok(())
}

fn submit_and_wait(ring: &mut IoUring, entry: &squeue::Entry) -> io::Result<cqueue::Entry> {
    // SAFETY: the entry has no pointers; its buffers are those of the registered pool, which
    // outlives the instance. The socket lives until its operation has ended or the instance is
    // closed.
    if unsafe { ring.submission().push(entry) }.is_err() {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    wait_for_completion(ring)
}

/// Submits the queued entry, if any, and waits for a completion. Fails after 5 s without one.
fn wait_for_completion(ring: &mut IoUring) -> io::Result<cqueue::Entry> {
    let timeout = Timespec::from(Duration::from_secs(5));
    let args = SubmitArgs::new().timespec(&timeout);
    loop {
        if let Some(completion) = ring.completion().next() {
            return Ok(completion);
        }
        match ring.submitter().submit_with_args(1, &args) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            Err(error) => return Err(explain("cannot enter io_uring", &error)),
        }
    }
}

/// Returns whether the error concerns io_uring rather than a shortage of descriptors.
pub(crate) fn is_about_io_uring(error: &io::Error) -> bool {
    !matches!(errno_of(error), libc::EMFILE | libc::ENFILE)
}
