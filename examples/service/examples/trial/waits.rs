//! Measures how long threads wait for a CPU during a request. The service, the kernel, the
//! databases and this program share the CPUs; these times show how long each of them waited.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The groups of threads whose waits are counted separately.
pub const GROUPS: [&str; 5] = [
    "client",
    "vCPUs",
    "the service's other threads",
    "redis",
    "postgres",
];

/// Waits in nanoseconds, for each of [`GROUPS`].
pub type WaitTimes = [u64; GROUPS.len()];

/// The kernel's statistics of each thread (`schedstat`), with its group and its last known wait.
pub struct Waits(Vec<(usize, File, Cell<u64>)>);

impl Waits {
    /// Opens the statistics of the calling thread, the service's threads and all databases of this
    /// machine.
    pub fn open(service: u32) -> Waits {
        let mut files = Vec::new();
        let mut add = |group, path: &Path| {
            files.extend(File::open(path).map(|file| (group, file, Cell::new(0))));
        };
        add(0, "/proc/thread-self/schedstat".as_ref());
        for process in entries("/proc".as_ref()) {
            let is_service = process.ends_with(service.to_string());
            let group = match name(&process).as_str() {
                _ if is_service => 2,
                "redis-server" => 3,
                "postgres" => 4,
                _ => continue,
            };
            for thread in entries(&process.join("task")) {
                let number = name(&thread);
                let number = number.strip_prefix("upshift-").unwrap_or_default();
                let is_vcpu =
                    is_service && number.starts_with(|first: char| first.is_ascii_digit());
                let group = if is_vcpu { 1 } else { group };
                add(group, &thread.join("schedstat"));
            }
        }
        Waits(files)
    }

    pub fn now(&self) -> WaitTimes {
        let mut waits = WaitTimes::default();
        for (group, file, last_wait) in &self.0 {
            let mut text = [0; 80];
            // A thread that has ended keeps its last known wait.
            let count = file.read_at(&mut text, 0).unwrap_or(0);
            let text = String::from_utf8_lossy(&text[..count]);
            if let Some(wait) = text.split(' ').nth(1).and_then(|word| word.parse().ok()) {
                last_wait.set(wait);
            }
            waits[*group] += last_wait.get();
        }
        waits
    }
}

fn entries(folder: &Path) -> impl Iterator<Item = std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| Some(entry.ok()?.path()))
}

fn name(process: &Path) -> String {
    let name = fs::read_to_string(process.join("comm")).unwrap_or_default();
    name.trim().to_owned()
}
