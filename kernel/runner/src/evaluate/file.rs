//! Reads and writes the file of measured points. All points belong to one commit, so that an
//! interrupted evaluation continues with the missing points. Points of another commit are deleted
//! when the first point is measured.

use super::point::{self, COLUMNS, Load, Point};

/// Beginning of the line that names the commit.
pub(super) const COMMIT: &str = "# commit ";

#[derive(Default)]
pub(super) struct File {
    pub(super) commit: String,
    pub(super) points: Vec<Point>,
}

impl File {
    pub(super) fn parse(text: &str) -> File {
        let (commit, points) = text.split_once('\n').unwrap_or_default();
        File {
            commit: commit.strip_prefix(COMMIT).unwrap_or("unknown").to_owned(),
            points: point::parse(points),
        }
    }

    /// Sets the commit of the next points, and deletes points of another commit.
    pub(super) fn begin(&mut self, commit: &str) {
        if self.commit != commit {
            self.commit = commit.to_owned();
            self.points.clear();
        }
    }

    pub(super) fn has(&self, load: Load) -> bool {
        self.points.iter().any(|point| point.load == load)
    }

    pub(super) fn text(&self) -> String {
        let lines: String = self.points.iter().map(Point::lines).collect();
        format!("{COMMIT}{}\n{COLUMNS}\n{lines}", self.commit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "KCUC,1,1,1,0,200,1,icount,all,10,1,1,1,0,5,1,1,1,1,100\n";

    #[test]
    fn points_are_kept_for_their_commit() {
        let mut file = File::parse(&format!("# commit old\n{COLUMNS}\n{LINE}"));
        assert_eq!(File::parse(&file.text()).text(), file.text());
        let load = file.points[0].load;
        file.begin("old");
        assert!(file.has(load));
        file.begin("new");
        assert!(!file.has(load));
        assert_eq!(file.text(), format!("# commit new\n{COLUMNS}\n"));
    }
}
