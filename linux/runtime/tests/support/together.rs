//! Files read at the same time.

use std::path::PathBuf;

use upshift::{Priority, fs};

/// Reads files at the same time, each in a coroutine of its own.
pub(crate) async fn together(paths: &[PathBuf]) -> Vec<std::io::Result<Vec<u8>>> {
    let read = |path: &PathBuf| {
        let path = path.clone();
        upshift::spawn(async move { fs::read(path).await }, Priority::Inherit)
    };
    let mut all = Vec::new();
    for task in paths.iter().map(read).collect::<Vec<_>>() {
        all.push(task.await.unwrap());
    }
    all
}
