module microgo

go 1.22
