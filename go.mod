module github.com/reaper-ttl/reaper

go 1.26.0
