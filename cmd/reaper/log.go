package main

import (
	"cmp"
	"io"
	"log/slog"

	"github.com/reaper-ttl/reaper/internal/config"
)

// newLogger returns a logger that writes to stderr, as the configuration says.
func newLogger(stderr io.Writer, c config.Config) *slog.Logger {
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if cmp.Or(c.LogFormat, defaultFormat(stderr)) == config.LogJSON {
		o.ReplaceAttr = cloudNames
		return slog.New(slog.NewJSONHandler(stderr, o))
	}
	if isTerminal(stderr) {
		stderr = overBar{stderr}
	}
	return slog.New(slog.NewTextHandler(stderr, o))
}

// cloudNames gives log records the field names and severities that Cloud Logging
// understands.
func cloudNames(groups []string, at slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return at
	}
	switch at.Key {
	case slog.MessageKey:
		at.Key = "message"
	case slog.LevelKey:
		level, _ := at.Value.Any().(slog.Level)
		severity := "DEBUG"
		switch {
		case level >= slog.LevelError:
			severity = "ERROR"
		case level >= slog.LevelWarn:
			severity = "WARNING"
		case level >= slog.LevelInfo:
			severity = "INFO"
		}
		return slog.String("severity", severity)
	}
	return at
}

// overBar writes log lines to a terminal with a progress bar: each replaces the bar, which
// is then drawn again below it.
type overBar struct{ w io.Writer }

func (o overBar) Write(p []byte) (int, error) {
	const clearLine = "\r\x1b[K"
	if _, err := io.WriteString(o.w, clearLine); err != nil {
		return 0, err
	}
	return o.w.Write(p)
}

// defaultFormat is for people on a terminal, and for programs elsewhere.
func defaultFormat(stderr io.Writer) config.LogFormat {
	if isTerminal(stderr) {
		return config.LogText
	}
	return config.LogJSON
}
