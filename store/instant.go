package store

import "time"

// instantLen is the length of every instant in a record.
const instantLen = len(TimeLayout)

// formatInstant is Time.Format with TimeLayout, at a third of the cost: most of what is
// written to records is instants. The year is one of 0 to 9999.
func formatInstant(t time.Time) string {
	var buf [instantLen]byte
	copy(buf[:], "0000-00-00T00:00:00.000000Z")
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	putDigits(buf[0:4], year)
	putDigits(buf[5:7], int(month))
	putDigits(buf[8:10], day)
	putDigits(buf[11:13], hour)
	putDigits(buf[14:16], minute)
	putDigits(buf[17:19], second)
	putDigits(buf[20:26], t.Nanosecond()/int(time.Microsecond))
	return string(buf[:])
}

func putDigits(dst []byte, n int) {
	for i := len(dst) - 1; n > 0 && i >= 0; i-- {
		dst[i] = byte('0' + n%10)
		n /= 10
	}
}

// parseInstant reads what formatInstant writes. Of every other text it says no more than
// that it is another one: time.Parse knows why, and takes some of them.
func parseInstant(s string) (t time.Time, ok bool) {
	if len(s) != instantLen || s[4] != '-' || s[7] != '-' || s[10] != 'T' || s[13] != ':' || s[16] != ':' ||
		s[19] != '.' || s[26] != 'Z' {
		return t, false
	}
	var parts [7]int
	for i, text := range [7]string{s[0:4], s[5:7], s[8:10], s[11:13], s[14:16], s[17:19], s[20:26]} {
		if parts[i], ok = digits(text); !ok {
			return t, false
		}
	}
	year, month, day, hour, minute, second, micro := parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6]
	if hour > 23 || minute > 59 || second > 59 {
		return t, false
	}
	t = time.Date(year, time.Month(month), day, hour, minute, second, micro*int(time.Microsecond), time.UTC)
	if t.Month() != time.Month(month) || t.Day() != day { // time.Date makes 1 March of 30 February
		return time.Time{}, false
	}
	return t, true
}

func digits(s string) (n int, ok bool) {
	for i := range len(s) {
		c := s[i]
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return n, true
}
