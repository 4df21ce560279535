module pagefleet.io/e2e/cluster/programs/pause

go 1.26.0
