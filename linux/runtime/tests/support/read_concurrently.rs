//! Reads files concurrently.

use std::path::PathBuf;

use upshift::{Priority, fs};

/// Reads each file in a coroutine of its own. Returns the results in the order of `paths`.
pub(crate) async fn read_concurrently(paths: &[PathBuf]) -> Vec<std::io::Result<Vec<u8>>> {
    let read = |path: &PathBuf| {
        let path = path.clone();
        upshift::spawn(async move { fs::read(path).await }, Priority::Inherit)
    };
    let mut results = Vec::new();
    for task in paths.iter().map(read).collect::<Vec<_>>() {
        results.push(task.await.unwrap());
    }
    results
}
