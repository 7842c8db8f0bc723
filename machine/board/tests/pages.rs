//! Tests of the mapping of pages. Only files that cannot cause a fault on a read may be accepted.

#![cfg(feature = "client")]

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};

use upshift_board::layout::{GLOBAL_BYTES, LOCAL_BYTES};
use upshift_board::os::{GLOBAL_SEALS, LOCAL_SEALS, Mapping, global_page, local_page, memory_file};

fn sealed_file(bytes: usize) -> OwnedFd {
    let file = memory_file("page", bytes).unwrap();
    rustix::fs::fcntl_add_seals(&file, LOCAL_SEALS).unwrap();
    file
}

#[test]
fn only_a_sealed_local_page_of_the_right_length_is_mapped() {
    let unsealed = memory_file("page", LOCAL_BYTES).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for invalid in [
        unsealed,
        sealed_file(100),
        sealed_file(2 * LOCAL_BYTES),
        file.into(),
    ] {
        let mapped = Mapping::local_for_reading(invalid.as_fd());
        assert_eq!(mapped.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    let (page, _) = local_page().unwrap();
    Mapping::local_for_reading(page.as_fd()).unwrap();
}

#[test]
fn a_global_page_that_is_short_or_could_be_truncated_is_not_mapped() {
    let mapping = Mapping::zeroed_global().unwrap();
    let unsealed = memory_file("page", GLOBAL_BYTES).unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for invalid in [unsealed, sealed_file(100), file.into()] {
        let kind = mapping.replace(Some(invalid.as_fd())).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::InvalidData);
    }
    let (page, view) = global_page().unwrap();
    mapping.replace(Some(page.as_fd())).unwrap();
    view.header()
        .cpus
        .store(7, std::sync::atomic::Ordering::Relaxed);
    let cpus = mapping
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
    mapping.replace(None).unwrap();
}
