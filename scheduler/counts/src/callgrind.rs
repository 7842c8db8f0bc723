//! Runs this program under callgrind.

use std::process::Command;

/// Returns the number of instructions per operation, from a run of `times` operations and a run of
/// three times as many.
pub(crate) fn count(name: &str, times: u32) -> Result<f64, String> {
    let base_count = total(name, times)?;
    let triple_count = total(name, 3 * times)?;
    Ok((triple_count.saturating_sub(base_count)) as f64 / f64::from(2 * times))
}

/// Returns the number of instructions of a process that runs an operation `times` times.
fn total(name: &str, times: u32) -> Result<u64, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["run", name, &times.to_string()]);
    let output = command
        .output()
        .map_err(|error| format!("valgrind: {error}: install it (apt-get install valgrind)"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let count = text
        .lines()
        .find_map(|line| line.split_once("Collected :"))
        .and_then(|(_, count)| count.trim().parse().ok());
    match count {
        Some(count) if output.status.success() => Ok(count),
        _ => Err(format!("{name} under valgrind: {text}")),
    }
}
