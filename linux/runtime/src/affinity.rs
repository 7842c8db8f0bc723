//! Reads and sets the CPUs on which a thread may run.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::thread::JoinHandle;

use crate::notice::explained;

/// A set of CPUs.
#[derive(Clone)]
pub(crate) struct Mask(libc::cpu_set_t);

impl Mask {
    pub(crate) fn cpus(&self) -> Vec<usize> {
        (0..libc::CPU_SETSIZE as usize)
            // SAFETY: `cpu` is below `CPU_SETSIZE`, so it is within the set.
            .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &self.0) })
            .collect()
    }
}

/// Returns the CPUs on which the calling thread may run.
pub(crate) fn current() -> io::Result<Mask> {
    // SAFETY: an all-zero set is a valid, empty one.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local of the size given.
    let result = unsafe { libc::sched_getaffinity(0, size_of_val(&cpus), &raw mut cpus) };
    if result == 0 {
        Ok(Mask(cpus))
    } else {
        let error = io::Error::last_os_error();
        let text = format!("cannot ask for this thread's CPUs (sched_getaffinity): {error}");
        Err(explained(&error, text))
    }
}

/// Returns the CPUs of the calling thread, or those of the machine if a sandbox forbids the system
/// call.
pub(crate) fn cpus() -> Vec<usize> {
    current().map_or_else(|_| (0..online_cpus()).collect(), |mask| mask.cpus())
}

pub(crate) fn online_cpus() -> usize {
    // SAFETY: the call takes no pointers.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(cpus).unwrap_or(1)
}

/// Lets the calling thread run on the CPUs of `mask`.
pub(crate) fn set(mask: &Mask) -> io::Result<()> {
    // SAFETY: the pointer is that of the set in `mask`, with its size.
    let result = unsafe { libc::sched_setaffinity(0, size_of_val(&mask.0), &raw const mask.0) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Gives the affinity `mask` to a thread that was just started. The calling thread makes the system
/// call, because the new thread might have to wait long for the CPU that it has inherited.
pub(crate) fn set_of_thread<T>(thread: &JoinHandle<T>, mask: &Mask) {
    // SAFETY: the thread has been neither joined nor detached, so its id is valid. The pointer is
    // that of the set in `mask`, with its size.
    unsafe {
        libc::pthread_setaffinity_np(
            thread.as_pthread_t(),
            size_of_val(&mask.0),
            &raw const mask.0,
        )
    };
}

/// Lets the calling thread run only on `cpu`.
pub(crate) fn pin(cpu: usize) -> io::Result<()> {
    let invalid = |why: &str| {
        io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("cannot pin a vCPU to CPU {cpu}: {why}"),
        )
    };
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(invalid("no CPU has so large a number"));
    }
    // SAFETY: an all-zero set is a valid, empty one.
    let mut cpus: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `cpu` is below `CPU_SETSIZE`, so it is within the set.
    unsafe { libc::CPU_SET(cpu, &mut cpus) };
    set(&Mask(cpus)).map_err(|_| invalid("this machine or this process's cpuset does not have it"))
}
