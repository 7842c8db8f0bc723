//! Mounts the disk when the first program starts, and unmounts it when this program has ended.

use os_abi::Error;
use os_files::{Mount, Volume};
use upshift_core::Priority;

use super::{STORAGE, abi_error, commit, sync};
use crate::disk::{self, Buffer};
use crate::{executor, println};

/// Starts the committer if there is a disk. Called while booting.
pub(crate) fn init() {
    if disk::blocks().is_some() {
        let options = Priority::At(executor::LEAST_URGENT_WORK);
        let committer = executor::spawn(commit::run(), options).expect("memory to boot");
        STORAGE.lock().committer = Some(committer.id());
        committer.detach();
    }
}

/// Mounts the disk, if there is one; formats a blank disk.
///
/// # Errors
/// The disk fails or is damaged, or its files do not fit into the memory.
pub(crate) async fn mount() -> Result<(), Error> {
    let Some(blocks) = disk::blocks() else {
        return Ok(());
    };
    let volume = match read(blocks).await {
        Err(os_files::Error::Blank) => {
            println!("upshift: the disk is blank, and is formatted");
            Volume::format(blocks)
        }
        outcome => outcome,
    };
    let volume = volume.map_err(|error| {
        println!("upshift: the disk is not mounted: {error}");
        abi_error(error)
    })?;
    let is_new = volume.is_changed();
    STORAGE.lock().volume = Some(volume);
    if is_new {
        sync().await?;
    }
    Ok(())
}

async fn read(blocks: u64) -> Result<Volume, os_files::Error> {
    let mut mount = Mount::new(blocks);
    let mut buffer = Buffer::take().await;
    while let Some(block) = mount.next() {
        let failed = |_| os_files::Error::Failed;
        buffer.read(block).await.map_err(failed)?;
        mount.supply(buffer.bytes().map_err(failed)?)?;
    }
    mount.finish()
}

/// Unmounts the disk: writes all changes, and frees the volume. No file may be open.
pub(crate) async fn unmount() {
    if STORAGE.lock().volume.is_none() {
        return;
    }
    if let Err(error) = sync().await {
        println!("upshift: the disk lacks some of the changes: {error}");
    }
    let volume = STORAGE.lock().volume.take();
    drop(volume);
}
