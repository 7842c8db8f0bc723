//! Writes the archive of the programs, a cpio file in the `newc` format.

/// Returns an archive of the files, which are pairs of name and contents.
pub(crate) fn write(files: Vec<(String, Vec<u8>)>) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, contents) in files {
        add(&mut archive, &name, &contents);
    }
    add(&mut archive, "TRAILER!!!", &[]);
    archive
}

fn add(archive: &mut Vec<u8>, name: &str, contents: &[u8]) {
    archive.extend_from_slice(b"070701");
    let regular_file = 0o100_755;
    // Inode, mode, uid, gid, links, time, size, device (4), name size, checksum.
    let fields = [
        0,
        regular_file,
        0,
        0,
        1,
        0,
        contents.len(),
        0,
        0,
        0,
        0,
        name.len() + 1,
        0,
    ];
    for field in fields {
        archive.extend_from_slice(format!("{field:08X}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    pad(archive);
    archive.extend_from_slice(contents);
    pad(archive);
}

fn pad(archive: &mut Vec<u8>) {
    archive.resize(archive.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut archive = Vec::new();
        add(&mut archive, "a", b"xyz");
        assert_eq!(archive.len() % 4, 0);
        assert_eq!(&archive[54..62], b"00000003");
        assert_eq!(&archive[110..112], b"a\0");
        assert_eq!(&archive[112..115], b"xyz");
        let archive = write(Vec::new());
        assert_eq!(&archive[110..120], b"TRAILER!!!");
    }
}
