package main

import (
	"cmp"
	"encoding/json"
	"os"
	"os/user"

	"github.com/reaper-ttl/reaper/internal/config"
)

// actor returns who changes a target: as configured, or the account whose key file the
// environment names, or the user of this machine. Nothing is asked over the network.
func actor(c config.Config, getenv func(string) string) string {
	if c.Actor != "" {
		return c.Actor
	}
	if c.Store.Driver != config.Embedded {
		if mail := mailOf(getenv("GOOGLE_APPLICATION_CREDENTIALS")); mail != "" {
			return mail
		}
	}
	name := cmp.Or(getenv("USER"), "unknown")
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return name + "@" + host
}

// mailOf returns the e-mail address in a key file of a service account, or nothing if
// the file has no address.
func mailOf(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var key struct {
		Mail string `json:"client_email"`
	}
	if json.Unmarshal(text, &key) != nil {
		return ""
	}
	return key.Mail
}
