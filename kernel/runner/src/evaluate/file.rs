//! The file of points: each under the commit at which it was measured.
//!
//! An evaluation takes the points of its commit as they are, and puts those it measures in the place of older
//! ones. So one that is ended goes on where it was, and the file is whole meanwhile.

use super::plan;
use super::point::{self, COLUMNS, Load, Point};

/// What a line begins with that names a commit.
const COMMIT: &str = "# commit ";

/// Points by commit, the latest first.
#[derive(Default)]
pub(super) struct File(Vec<(String, Vec<Point>)>);

impl File {
    pub(super) fn parse(text: &str) -> File {
        let sections = text.split(COMMIT).skip(1);
        let section = |section: &str| {
            let (commit, points) = section.split_once('\n').unwrap_or((section, ""));
            (commit.to_owned(), point::parse(points))
        };
        File(sections.map(section).collect())
    }

    /// What comes is of this commit: it is the first.
    pub(super) fn begin(&mut self, commit: &str) {
        let known = self.0.iter().position(|(known, _)| known == commit);
        let section = known.map_or((commit.to_owned(), Vec::new()), |at| self.0.remove(at));
        self.0.insert(0, section);
    }

    /// Was it measured at the commit that is the first?
    pub(super) fn has(&self, load: Load) -> bool {
        let first = self.0.first();
        first.is_some_and(|(_, points)| points.iter().any(|point| point.load == load))
    }

    /// A point of the commit that is the first, in the place of what there is of its load.
    pub(super) fn put(&mut self, point: Point) {
        for (_, points) in &mut self.0 {
            points.retain(|old| old.load != point.load);
        }
        if let Some((_, points)) = self.0.first_mut() {
            points.push(point);
        }
        self.0.retain(|(_, points)| !points.is_empty());
    }

    pub(super) fn text(&self) -> String {
        let section = |(commit, points): &(String, Vec<Point>)| {
            let lines: String = points.iter().map(Point::lines).collect();
            format!("{COMMIT}{commit}\n{COLUMNS}\n{lines}")
        };
        self.0.iter().map(section).collect()
    }

    /// The commits; if there are several, with which points are of each.
    pub(super) fn commits(&self) -> String {
        let several = self.0.len() > 1;
        let commit = |(commit, points): &(String, Vec<Point>)| match several {
            true => format!("`{commit}` ({})", kinds(points)),
            false => format!("`{commit}`"),
        };
        let all: Vec<String> = self.0.iter().map(commit).collect();
        all.join(" and ")
    }

    pub(super) fn points(self) -> Vec<Point> {
        self.0.into_iter().flat_map(|(_, points)| points).collect()
    }
}

/// How many points there are of each kind.
fn kinds(points: &[Point]) -> String {
    let mut kinds: Vec<(&str, usize)> = Vec::new();
    for point in points {
        let kind = kind(&point.load);
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let words = |(kind, count): &(&str, usize)| format!("{kind}: {count}");
    let words: Vec<String> = kinds.iter().map(words).collect();
    words.join(", ")
}

fn kind(load: &Load) -> &'static str {
    match load {
        Load { levels: 2.., .. } => "several levels",
        Load { period: 1.., .. } => "open loop",
        Load { millis, .. } if *millis == plan::MEMORY => "memory",
        Load { harts: 2.., .. } => "closed loop on several harts",
        _ => "closed loop on one hart",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "KCUC,1,1,1,0,200,1,icount,all,10,1,1,1,0,5,1,1,1,1,100\n";
    const OTHER: &str = "KTUT,1,1,1,0,200,1,icount,all,10,1,1,1,0,5,1,1,1,1,200\n";

    #[test]
    fn a_point_takes_the_place_of_an_older_one() {
        let mut file = File::parse(&format!("# commit old\n{COLUMNS}\n{ONE}{OTHER}"));
        assert_eq!(file.commits(), "`old`");
        file.begin("new");
        let newer = point::parse(&ONE.replace(",100", ",90")).remove(0);
        assert!(!file.has(newer.load));
        file.put(newer.clone());
        assert!(file.has(newer.load));
        assert_eq!(
            file.commits(),
            "`new` (closed loop on one hart: 1) and `old` (closed loop on one hart: 1)"
        );
        let mut again = File::parse(&file.text());
        assert_eq!(again.text(), file.text());
        // Going on at the same commit.
        again.begin("new");
        assert!(again.has(newer.load));
        let last = point::parse(OTHER).remove(0);
        again.put(last.clone());
        assert_eq!(again.commits(), "`new`");
        assert_eq!(again.points(), [newer, last]);
    }
}
