package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode"
)

// Lines returns the settings of a target for its history, one "path: value" a line. Two
// targets with the same settings have the same lines. The gate's address may hold a
// password, so its line only shows whether it is the same.
func (t Target) Lines() []string {
	if t.Pace.Gate != "" {
		sum := sha256.Sum256([]byte(t.Pace.Gate))
		t.Pace.Gate = hex.EncodeToString(sum[:4])
	}
	return linesOf("", reflect.ValueOf(t))
}

// linesOf returns the lines of the exported fields of a struct.
func linesOf(section string, v reflect.Value) (list []string) {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if !f.IsExported() {
			continue
		}
		path, value := section+snake(f.Name), v.Field(i)
		switch x := value.Interface().(type) {
		case time.Duration:
			list = append(list, path+": "+FormatDuration(x))
		case fmt.Stringer:
			list = append(list, path+": "+x.String())
		default:
			if value.Kind() == reflect.Struct {
				list = append(list, linesOf(path+".", value)...)
				continue
			}
			list = append(list, fmt.Sprintf("%s: %v", path, x))
		}
	}
	return list
}

// snake returns the name of a field as the targets file has it: MaxAge is max_age.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
