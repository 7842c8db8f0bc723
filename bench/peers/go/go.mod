module peergo

go 1.22
