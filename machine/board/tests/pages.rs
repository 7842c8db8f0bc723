//! Mapping of pages: only files are accepted that cannot make a read fault.

#![cfg(feature = "client")]

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};

use upshift_board::layout::{GLOBAL_BYTES, LOCAL_BYTES};
use upshift_board::os::{GLOBAL_SEALS, LOCAL_SEALS, Mapping, global_page, local_page, memory_file};

fn sealed(bytes: usize) -> OwnedFd {
    let file = memory_file("page", bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, LOCAL_SEALS).unwrap();
    file
}

#[test]
fn a_local_page_that_could_be_truncated_is_not_mapped() {
    let unsealed = memory_file("page", LOCAL_BYTES).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for bad in [unsealed, sealed(100), sealed(2 * LOCAL_BYTES), file.into()] {
        let mapped = Mapping::local_for_reading(bad.as_fd());
        assert_eq!(mapped.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let (page, _) = local_page().unwrap();
    Mapping::local_for_reading(page.as_fd()).unwrap();
}

#[test]
fn a_global_page_that_could_be_truncated_is_not_shown() {
    let shown = Mapping::global_room().unwrap();
    let unsealed = memory_file("page", GLOBAL_BYTES).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for bad in [unsealed, sealed(100), file.into()] {
        let kind = shown.show(Some(bad.as_fd())).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidData);
    }
    let (page, view) = global_page().unwrap();
    shown.show(Some(page.as_fd())).unwrap();
    view.header()
        .cpus
        .store(7, std::sync::atomic::Ordering::Relaxed);
    let cpus = shown
        .header()
        .cpus
        .load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(cpus, 7);
    assert!(rustix::fs::ftruncate(&page, 0).is_err());
    assert!(
        rustix::fs::fcntl_get_seals(&page)
            .unwrap()
            .contains(GLOBAL_SEALS)
    );
    shown.show(None).unwrap();
}
