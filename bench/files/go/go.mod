module upshift.test/files

go 1.22
