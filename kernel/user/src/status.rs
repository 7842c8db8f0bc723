//! The state of the machine: programs of the archive, processes, harts. Any program may query it.

use alloc::string::String;
use alloc::vec::Vec;

use os_abi::Error;
pub use os_abi::{HartStatus, ProcessStatus};

use crate::sys;

/// Lists the programs of the archive.
///
/// # Errors
/// Errors of the call, if the program was built for another kernel.
pub fn programs() -> Result<Vec<String>, Error> {
    let mut programs = Vec::new();
    loop {
        let mut name = [0; ProcessStatus::NAME];
        let len = sys::program(programs.len(), name.as_mut_ptr() as usize, name.len())? as usize;
        if len == 0 {
            return Ok(programs);
        }
        let name = &name[..len.min(name.len())];
        programs.push(String::from_utf8_lossy(name).into_owned());
    }
}

/// Lists the processes, including processes that have ended but were not waited for. An entry
/// describes its process at the time at which it was read.
///
/// # Errors
/// Errors of the call, if the program was built for another kernel.
pub fn processes() -> Result<Vec<ProcessStatus>, Error> {
    let mut processes = Vec::new();
    let mut from = 0;
    loop {
        let mut bytes = [0; ProcessStatus::BYTES];
        from = sys::process(from, bytes.as_mut_ptr() as usize, bytes.len())? as usize;
        if from == 0 {
            return Ok(processes);
        }
        processes.push(ProcessStatus::from_bytes(&bytes));
    }
}

/// Lists the status of each hart.
///
/// # Errors
/// Errors of the call, if the program was built for another kernel.
pub fn harts() -> Result<Vec<HartStatus>, Error> {
    let mut harts = Vec::new();
    loop {
        let mut bytes = [0; HartStatus::BYTES];
        let count = sys::hart(harts.len(), bytes.as_mut_ptr() as usize, bytes.len())? as usize;
        harts.push(HartStatus::from_bytes(&bytes));
        if harts.len() >= count {
            return Ok(harts);
        }
    }
}
